package main

// listed is when the prices below were on Turso's public list (turso.tech/pricing), in US dollars, paid by the year.
const listed = "June 2026"

// plan is what Turso has in a month for an organization, whatever its number of databases, and what more costs.
type plan struct {
	name           string
	dollars        float64
	storage, rows  float64 // bytes, and rows written
	perGB, perRows float64 // dollars for a further gigabyte, and for a million rows written; 0: there is no more
}

var plans = []plan{
	{name: "Free", storage: 5e9, rows: 10e6},
	{name: "Developer", dollars: 4.99, storage: 9e9, rows: 25e6, perGB: 0.75, perRows: 1},
	{name: "Scaler", dollars: 24.92, storage: 24e9, rows: 100e6, perGB: 0.50, perRows: 0.80},
	{name: "Pro", dollars: 416.58, storage: 50e9, rows: 250e6, perGB: 0.45, perRows: 0.75},
}

// extra is what is paid beyond the plan, in dollars.
type extra struct{ rows, storage float64 }

// bill says what so many rows written and bytes cost beyond the plan, and whether the plan can have them.
func (p plan) bill(rows, storage float64) (extra, bool) {
	more := extra{rows: max(0, rows-p.rows) / 1e6 * p.perRows, storage: max(0, storage-p.storage) / 1e9 * p.perGB}
	return more, p.perRows > 0 || (rows <= p.rows && storage <= p.storage)
}
