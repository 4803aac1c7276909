package app

import (
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/evaluations"
	"github.com/weirlimits/weir/lib/web"
)

// maxEntryID is the highest number that every client can read in JSON.
const maxEntryID = 1<<53 - 1

type newEvaluation struct {
	Entry jsontext.Value `json:"entry"`
	Score jsontext.Value `json:"score"`
	Note  string         `json:"note,omitempty"`
}

type addedEvaluation struct {
	ID int64 `json:"id"`
}

type modelResult struct {
	Model        string  `json:"model"`
	Count        int64   `json:"count"`
	Mean         float64 `json:"mean"`
	Distribution []int64 `json:"distribution"`
}

type modelResults struct {
	Items     []modelResult `json:"items"`
	Truncated bool          `json:"truncated"`
}

func (a *App) evaluate() web.Resource {
	return web.Resource{
		http.MethodPost: memberBody(a, access{accounts.Admin, "evaluation"}, 0, a.scoreEntry),
		http.MethodGet:  memberQuery(a, access{accounts.Admin, "evaluation-read"}, a.readResults),
	}
}

func (a *App) scoreEntry(call *web.Call, admin accounts.Account, in newEvaluation) (web.Reply, error) {
	id, err := wholeField("entry", in.Entry, 1, maxEntryID, "the entry is the id of one, a whole number")
	if err != nil {
		return web.Reply{}, err
	}
	score, err := wholeField("score", in.Score, evaluations.MinScore, evaluations.MaxScore, evaluations.ScoreRule)
	if err != nil {
		return web.Reply{}, err
	}
	by := evaluations.Evaluator{Account: admin.ID, Demo: admin.Name.Reserved()}
	added, err := a.evaluations.Score(call.Context(), by, evaluations.Evaluation{Entry: id, Score: score, Note: in.Note})
	switch {
	case errors.Is(err, evaluations.ErrNote):
		return web.Reply{}, web.Unprocessable("note", sentence(evaluations.NoteRule))
	case errors.Is(err, evaluations.ErrEntry):
		return web.Reply{}, web.NotFound("There is no such entry.")
	case err != nil:
		return web.Reply{}, storage(err)
	}
	return web.Reply{Status: http.StatusCreated, Body: addedEvaluation{added}}, nil
}

func (a *App) readResults(call *web.Call, admin accounts.Account) (web.Reply, error) {
	all, more, err := a.evaluations.Results(call.Context(), admin.Name.Reserved())
	if err != nil {
		return web.Reply{}, storage(err)
	}
	body := modelResults{Items: []modelResult{}, Truncated: more}
	for _, r := range all {
		body.Items = append(body.Items, modelResult{r.Model, r.Count, r.Mean, r.Distribution[:]})
	}
	return web.Reply{Body: body}, nil
}
