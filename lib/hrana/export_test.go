package hrana

import "context"

// SetPause replaces the pause before a statement is asked again.
func (c *Client) SetPause(pause func(context.Context) bool) { c.pause = pause }
