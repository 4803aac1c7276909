package app

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/web"
)

// maxEntryBytes bounds the body of a new entry. Every entry that is allowed fits, also one of which a client writes each
// character in its longest form, 6 bytes for one, with room for the names of the fields.
const maxEntryBytes = 6*(ailog.MaxModelBytes+ailog.MaxPromptBytes+ailog.MaxResponseBytes) + 1<<10

// newEntry is the body of POST. What may be empty or 0, and may not be left out, is read later.
type newEntry struct {
	Model    string         `json:"model"`
	Prompt   string         `json:"prompt"`
	Response *string        `json:"response"`
	Tokens   jsontext.Value `json:"tokens"`
}

type addedEntry struct {
	ID        int64     `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
}

type entry struct {
	ID        int64     `json:"id"`
	Model     string    `json:"model"`
	Prompt    string    `json:"prompt"`
	Response  string    `json:"response"`
	Tokens    int64     `json:"tokens"`
	CreatedAt time.Time `json:"createdAt"`
}

type entryPage struct {
	Items []entry `json:"items"`
	Next  string  `json:"next,omitempty"`
}

func (a *App) aiLog() web.Resource {
	return web.Resource{
		http.MethodPost: memberBody(a, access{accounts.Member, "ai-log"}, maxEntryBytes, a.addEntry),
		http.MethodGet:  memberQuery(a, access{accounts.Member, "ai-log-read"}, a.readEntries),
	}
}

func (a *App) addEntry(call *web.Call, account accounts.Account, in newEntry) (web.Reply, error) {
	tokens, err := wholeField("tokens", in.Tokens, 0, ailog.MaxTokens, ailog.TokensRule)
	if err != nil {
		return web.Reply{}, err
	}
	if in.Response == nil {
		return web.Reply{}, web.Unprocessable("response", "Please give the response; it may be empty.")
	}
	// Whoever has a demo account shares it with everybody.
	author := ailog.Author{Account: account.ID, Demo: account.Name.Reserved()}
	added, err := a.entries.Add(call.Context(), author, ailog.Text{Model: in.Model, Prompt: in.Prompt, Response: *in.Response, Tokens: tokens})
	switch {
	case errors.Is(err, ailog.ErrModel):
		return web.Reply{}, web.Unprocessable("model", sentence(ailog.ModelRule))
	case errors.Is(err, ailog.ErrPrompt):
		return web.Reply{}, web.Unprocessable("prompt", sentence(ailog.PromptRule))
	case errors.Is(err, ailog.ErrResponse):
		return web.Reply{}, web.Unprocessable("response", sentence(ailog.ResponseRule))
	case errors.Is(err, ailog.ErrAccount): // deleted since the session was read
		return web.Reply{}, web.Unauthorized("Please sign in first.")
	case err != nil:
		return web.Reply{}, storage(err)
	}
	return web.Reply{Status: http.StatusCreated, Body: addedEntry{added.ID, added.Created}}, nil
}

func (a *App) readEntries(call *web.Call, account accounts.Account) (web.Reply, error) {
	everybodys, err := call.Query("all")
	switch {
	case err != nil:
		return web.Reply{}, err
	case everybodys != "1" && call.Request.URL.Query().Has("all"):
		return web.Reply{}, web.BadRequest("all", `The only value is "1": the entries of all members, for admins.`)
	case everybodys != "" && account.Role != accounts.Admin:
		return web.Reply{}, web.Forbidden("The entries of all members are for admins.")
	}
	return readPage(call, func(cursor string, limit int) (ailog.Page, error) {
		if everybodys != "" {
			return a.entries.All(call.Context(), account.Name.Reserved(), cursor, limit)
		}
		return a.entries.Own(call.Context(), account.ID, cursor, limit)
	})
}

// readPage reads which page a request asks for, and answers with it.
func readPage(call *web.Call, read func(cursor string, limit int) (ailog.Page, error)) (web.Reply, error) {
	cursor, err := call.Query("cursor")
	if err != nil {
		return web.Reply{}, err
	}
	limit, err := pageLimit(call)
	if err != nil {
		return web.Reply{}, err
	}
	page, err := read(cursor, limit)
	switch {
	case errors.Is(err, ailog.ErrCursor):
		return web.Reply{}, web.BadRequest("cursor", "This is no cursor of these entries. Please begin without one.")
	case errors.Is(err, ailog.ErrLimit):
		return web.Reply{}, badPageLimit()
	case err != nil:
		return web.Reply{}, storage(err)
	}
	body := entryPage{Items: []entry{}, Next: page.Next}
	for _, e := range page.Entries {
		body.Items = append(body.Items, entry{e.ID, e.Model, e.Prompt, e.Response, e.Tokens, e.Created})
	}
	return web.Reply{Body: body}, nil
}

// pageLimit reads how many entries a page shall have. Its bounds are ailog's to check.
func pageLimit(call *web.Call) (int, error) {
	text, err := call.Query("limit")
	if err != nil {
		return 0, err
	}
	if !call.Request.URL.Query().Has("limit") {
		return ailog.DefaultPageEntries, nil
	}
	limit, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, badPageLimit()
	}
	return int(limit), nil
}

func badPageLimit() error {
	return web.BadRequest("limit", fmt.Sprintf("The limit is a whole number from 1 to %d; when left out it is %d.", ailog.MaxPageEntries, ailog.DefaultPageEntries))
}

// wholeField reads a number of a body. One that is missing, not whole or out of bounds is a 422 with the rule, and what is no
// number a 400. See wholeNumber.
func wholeField(field string, value jsontext.Value, lowest, highest int64, rule string) (int64, error) {
	if value != nil && value.Kind() != '0' && value.Kind() != 'n' {
		return 0, web.BadRequest(field, "The value of this field is of the wrong kind.")
	}
	number, err := wholeNumber(string(value))
	if err != nil || number < lowest || number > highest {
		return 0, web.Unprocessable(field, sentence(rule))
	}
	return number, nil
}
