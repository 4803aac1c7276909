package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/breached"
	"github.com/weirlimits/weir/lib/web"
)

// passwordProblem says what is wrong with a new password, in the field of that name.
func passwordProblem(field string, err error) error {
	switch {
	case errors.Is(err, accounts.ErrPassword):
		return web.Unprocessable(field, sentence(accounts.PasswordRule))
	case errors.Is(err, accounts.ErrBreached):
		return web.Unprocessable(field, "This password is in lists of stolen ones, or is made of the user name: others would try it first. Please choose another one.")
	}
	return storage(err)
}

// breachedBy gives what asks the service of the settings about a new password, nil where there is none. A password that the service
// says nothing about is accepted: nobody's sign-up depends on somebody else's server.
func breachedBy(settings Settings, log *slog.Logger) func(context.Context, string) bool {
	if settings.Breached == nil {
		return nil
	}
	service := breached.NewHTTP(*settings.Breached)
	return func(ctx context.Context, password string) bool {
		listed, err := breached.IsListed(ctx, service, password)
		if err != nil {
			log.WarnContext(ctx, "a new password is not looked up among stolen ones", slog.String("error", err.Error()))
		}
		return listed
	}
}
