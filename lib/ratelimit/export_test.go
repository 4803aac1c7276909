package ratelimit

// Remembered says how many refusals a limiter remembers.
func Remembered(l *Limiter) int {
	l.refused.mu.Lock()
	defer l.refused.mu.Unlock()
	return len(l.refused.kept)
}
