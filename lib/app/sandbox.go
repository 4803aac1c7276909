package app

import (
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/sandbox"
	"github.com/weirlimits/weir/lib/web"
)

func (a *App) sandboxSQL() web.Resource {
	type input struct {
		SQL string `json:"sql"`
	}
	type output struct {
		Columns   []string           `json:"columns"`
		Rows      [][]jsontext.Value `json:"rows"`
		Truncated bool               `json:"truncated"`
	}
	return web.Resource{
		http.MethodPost: memberBody(a, access{accounts.Admin, "sandbox-sql"}, 0, func(call *web.Call, _ accounts.Account, in input) (web.Reply, error) {
			result, err := a.sandbox.Run(call.Context(), in.SQL)
			if err != nil {
				return web.Reply{}, sandboxProblem(err)
			}
			return web.Reply{Body: output(result)}, nil
		}),
	}
}

func sandboxProblem(err error) error {
	var told *sandbox.StatementError
	switch {
	case errors.As(err, &told):
		return web.Unprocessable("sql", told.Reason)
	case errors.Is(err, sandbox.ErrTime):
		return &web.Problem{
			Status: http.StatusRequestTimeout,
			Field:  "sql",
			Detail: "The statement took too long and was stopped.",
		}
	case errors.Is(err, sandbox.ErrBusy):
		return &web.Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "Other statements are running at the moment. Please try again in a few seconds.",
		}
	}
	return err
}
