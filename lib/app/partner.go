package app

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// What a partner's request costs its key, in units. A search looks through some thousand texts where a list reads a page.
const (
	listCost   = 1
	searchCost = 5
)

// planPolicies are the limits of a key by its plan. Each plan's bucket is one of its own: a key that changes its plan begins with
// a full one.
var planPolicies = map[partners.Plan]string{
	partners.Free: "partner-free",
	partners.Paid: "partner-paid",
}

// plans names the plan of each of those limits.
func plans() map[string]string {
	names := map[string]string{}
	for plan, policy := range planPolicies {
		names[policy] = string(plan)
	}
	return names
}

// partner is for programs that show a key. The limit is the key's, wherever its requests come from: a partner's servers often
// share one address. Who shows no good key costs the address.
func (a *App) partner() web.Resource {
	return web.Resource{
		http.MethodGet: web.Keyed(a.identifyPartner, web.Query([]ratelimit.Policy{a.policy(edge)}, nil, a.readForPartner)),
	}
}

// identifyPartner charges the key by its plan, both as they are stored now.
func (a *App) identifyPartner(call *web.Call) ([]ratelimit.Charge, error) {
	partner, err := a.partners.Find(call.Context(), call.Bearer())
	switch {
	case errors.Is(err, partners.ErrKey):
		return nil, call.InvalidToken("This address is for partners: it takes an API key that its operator gave out and has not revoked.")
	case err != nil:
		return nil, storage(err)
	}
	cost := int64(listCost)
	if searches(call) {
		cost = searchCost
	}
	return []ratelimit.Charge{a.policy(planPolicies[partner.Plan]).ChargeN(strconv.FormatInt(partner.ID, 10), cost)}, nil
}

// searches says whether a request asks for a search, though it may ask for one that there can't be.
func searches(call *web.Call) bool { return call.Request.URL.Query().Has("q") }

// readForPartner gives what admins who aren't the demo's get with all=1.
func (a *App) readForPartner(call *web.Call) (web.Reply, error) {
	query, err := call.Query("q")
	if err != nil {
		return web.Reply{}, err
	}
	reply, err := readPage(call, func(cursor string, limit int) (ailog.Page, error) {
		if searches(call) {
			return a.entries.Search(call.Context(), false, query, cursor, limit)
		}
		return a.entries.All(call.Context(), false, cursor, limit)
	})
	if errors.Is(err, ailog.ErrQuery) {
		err = web.BadRequest("q", sentence(ailog.QueryRule))
	}
	return reply, err
}
