package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlimits/weir/lib/alerts"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// Shard is a database of counters that was opened: see Config.
type Shard struct {
	Name string
	DB   *database.DB
}

// counters are the databases that the limiter's rows are in, with the audit and the alerts that its triggers write: the
// application's own, or the shards, in the order of their names.
type counters struct {
	all     []*counter
	alerted []*counter // those with alerts: the application's own database too, which has some of other kinds
	store   ratelimit.Store
}

type counter struct {
	name   string
	shard  int // from 1 on, in the order of names; 0 for the application's own database alone
	store  *sqlstore.Store
	alerts *alerts.Alerts
}

// newCounters makes the counters of db, or of the shards if there are any.
func newCounters(db *database.DB, now, next []Shard, store sqlstore.Config, alert func(name string) alerts.Config) (*counters, error) {
	if len(now) == 0 && len(next) == 0 {
		one := []*counter{{store: openStore(db, store), alerts: alerts.New(db.DB, alert(""))}}
		return &counters{all: one, alerted: one, store: one[0].store}, nil
	}
	c := &counters{}
	own := false
	made := func(list []Shard) (shards []ratelimit.Shard) {
		for _, shard := range list {
			i := slices.IndexFunc(c.all, func(known *counter) bool { return known.name == shard.Name })
			if i < 0 {
				i = len(c.all)
				own = own || shard.DB == db
				c.all = append(c.all, &counter{
					name: shard.Name, store: openStore(shard.DB, store), alerts: alerts.New(shard.DB.DB, alert(shard.Name)),
				})
			}
			shards = append(shards, ratelimit.Shard{Name: shard.Name, Store: c.all[i].store})
		}
		return shards
	}
	var err error
	c.store, err = ratelimit.NewShards(made(now), made(next))
	slices.SortFunc(c.all, func(a, b *counter) int { return cmp.Compare(a.name, b.name) })
	for i, one := range c.all {
		one.shard = i + 1
	}
	c.alerted = c.all
	if !own {
		c.alerted = append([]*counter{{alerts: alerts.New(db.DB, alert(""))}}, c.all...)
	}
	return c, err
}

// several says whether there are shards, which fail one by one and not with the application's database.
func (c *counters) several() bool { return c.all[0].name != "" }

// each asks databases at once. The error joins theirs.
func each(databases []*counter, ask func(i int, one *counter) error) error {
	errs := make([]error, len(databases))
	var group sync.WaitGroup
	for i, one := range databases {
		group.Go(func() { errs[i] = ask(i, one) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// counts are those of all databases, by policy.
func (c *counters) counts(ctx context.Context) ([]sqlstore.Count, error) {
	of := make([][]sqlstore.Count, len(c.all))
	err := each(c.all, func(i int, one *counter) (err error) {
		of[i], err = one.store.Counts(ctx)
		return err
	})
	var all []sqlstore.Count
	for _, count := range slices.Concat(of...) {
		i := slices.IndexFunc(all, func(known sqlstore.Count) bool { return known.Policy == count.Policy })
		if i < 0 {
			all = append(all, count)
			continue
		}
		all[i].ActiveKeys += count.ActiveKeys
		all[i].Refusals += count.Refusals
		all[i].Estimated = all[i].Estimated || count.Estimated
	}
	return all, err
}

// refusals are those of all databases, by policy and hour. Where their clocks show two hours, the later one is the last.
func (c *counters) refusals(ctx context.Context) (all sqlstore.HourlyRefusals, err error) {
	of := make([]sqlstore.HourlyRefusals, len(c.all))
	err = each(c.all, func(i int, one *counter) (err error) {
		of[i], err = one.store.Refusals(ctx)
		return err
	})
	for _, one := range of {
		if one.From.After(all.From) {
			all.From = one.From
		}
		all.Estimated = all.Estimated || one.Estimated
	}
	for _, one := range of {
		late := int(all.From.Sub(one.From) / time.Hour)
		for _, policy := range one.Policies {
			i, found := slices.BinarySearchFunc(all.Policies, policy.Policy, func(p sqlstore.PolicyRefusals, name string) int { return cmp.Compare(p.Policy, name) })
			if !found {
				all.Policies = slices.Insert(all.Policies, i, sqlstore.PolicyRefusals{Policy: policy.Policy})
			}
			for hour, n := range policy.Hours {
				if hour >= late {
					all.Policies[i].Hours[hour-late] += n
				}
			}
		}
	}
	return all, err
}

// sweepAudit deletes what is over of the audit of all databases.
func (c *counters) sweepAudit(ctx context.Context) (deleted int64, done bool, err error) {
	return sweep(c.all, func(one *counter) (int64, bool, error) { return one.store.SweepAudit(ctx) })
}

// sweepAlerts does the same with alerts.
func (c *counters) sweepAlerts(ctx context.Context) (deleted int64, done bool, err error) {
	return sweep(c.alerted, func(one *counter) (int64, bool, error) { return one.alerts.Sweep(ctx) })
}

func sweep(databases []*counter, sweep func(*counter) (int64, bool, error)) (deleted int64, done bool, err error) {
	of, through := make([]int64, len(databases)), make([]bool, len(databases))
	err = each(databases, func(i int, one *counter) (err error) {
		of[i], through[i], err = sweep(one)
		return err
	})
	for _, n := range of {
		deleted += n
	}
	return deleted, !slices.Contains(through, false), err
}

// sendAlerts sends what is due in all databases.
func (c *counters) sendAlerts(ctx context.Context) error {
	return each(c.alerted, func(_ int, one *counter) error {
		_, err := one.alerts.Send(ctx)
		return err
	})
}

// tag tells the alerts of one shard from those of another, which have the same numbers: some digits of its name's hash.
func tag(shard string) string {
	if shard == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(shard))
	return "-" + hex.EncodeToString(sum[:4])
}

// databases are what an App works on.
type databases struct {
	own       *database.DB
	now, next []Shard
}

// openDatabases opens what the settings name, each once.
func openDatabases(settings Settings, deadline time.Duration) (d databases, err error) {
	open := func(url string) *database.DB {
		db, failed := database.Open(database.Config{URL: url, AuthToken: settings.AuthToken, Deadline: deadline})
		err = errors.Join(err, failed)
		return db
	}
	d.own = open(settings.DatabaseURL)
	place, _ := shardPlace(settings.DatabaseURL)
	known := map[string]*database.DB{place: d.own} // which may be a shard too
	list := func(settings []ShardSetting) (shards []Shard) {
		for _, shard := range settings {
			place, _ := shardPlace(shard.URL)
			if known[place] == nil {
				known[place] = open(shard.URL)
			}
			shards = append(shards, Shard{shard.Name, known[place]})
		}
		return shards
	}
	d.now, d.next = list(settings.Shards), list(settings.NextShards)
	if err != nil {
		return databases{}, errors.Join(err, d.Close())
	}
	return d, nil
}

// shards are those of both lists, each once.
func (d databases) shards() (all []Shard) {
	for _, shard := range slices.Concat(d.now, d.next) {
		if !slices.ContainsFunc(all, func(known Shard) bool { return known.Name == shard.Name }) {
			all = append(all, shard)
		}
	}
	return all
}

// Close closes those that were opened.
func (d databases) Close() error {
	err := d.closeShards()
	if d.own != nil {
		err = errors.Join(err, d.own.Close())
	}
	return err
}

// closeShards closes those that aren't the application's own.
func (d databases) closeShards() error {
	var errs []error
	for _, shard := range d.shards() {
		if shard.DB != nil && shard.DB != d.own {
			errs = append(errs, shard.DB.Close())
		}
	}
	return errors.Join(errs...)
}

// migrateShards brings the shards to the newest schema.
func (d databases) migrateShards(ctx context.Context) error {
	for _, shard := range d.shards() {
		if _, err := migration.Up(ctx, shard.DB); err != nil {
			return err
		}
	}
	return nil
}

// isFile says whether a database is an embedded file.
func isFile(url string) bool { return strings.HasPrefix(strings.ToLower(url), "file:") }

// OpenShards opens the databases that counters are in, and those of the list that is to come, by
// name, for commands that go through them; end closes them. Its errors are those of LoadShards, of
// database.Open and of migration.Check.
func OpenShards(ctx context.Context, lookup func(string) (string, bool), root string, deadline time.Duration) (now, next map[string]*sqlstore.Store, end func() error, err error) {
	own, nowList, nextList, err := LoadShards(lookup, root)
	if err != nil {
		return nil, nil, nil, err
	}
	dbs, err := openDatabases(Settings{DatabaseURL: own.URL, AuthToken: own.AuthToken, Shards: nowList, NextShards: nextList}, deadline)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, shard := range dbs.shards() {
		if _, err := migration.Check(ctx, shard.DB); err != nil {
			return nil, nil, nil, errors.Join(fmt.Errorf("%s: %w", shard.Name, err), dbs.Close())
		}
	}
	stores := func(shards []Shard) map[string]*sqlstore.Store {
		all := map[string]*sqlstore.Store{}
		for _, shard := range shards {
			all[shard.Name] = openStore(shard.DB, sqlstore.Config{Deadline: deadline})
		}
		return all
	}
	return stores(dbs.now), stores(dbs.next), dbs.Close, nil
}
