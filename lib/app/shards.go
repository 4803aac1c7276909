package app

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
)

// ShardSetting is one of the databases of TURSO_DATABASE_URLS.
type ShardSetting struct {
	Name string // what subjects are shared out by: what stands before the URL, or its host and path
	URL  string

	named bool
}

// The variables of the two lists.
const (
	shardsVariable = "TURSO_DATABASE_URLS"
	nextVariable   = "TURSO_DATABASE_URLS_NEXT"
)

// shardName is what may stand before a URL. A URL begins with no such text and an equals sign.
var shardName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// shards reads the databases that counters are spread over, and the list that is to come. Where there is only the latter, the
// counters are in the application's own database until then.
func (e *environment) shards(own database.Config, platform bool) (now, next []ShardSetting) {
	now, next = e.shardList(shardsVariable, own, platform), e.shardList(nextVariable, own, platform)
	if next == nil || e.failed[nextVariable] || e.failed[shardsVariable] {
		return now, next
	}
	if now == nil {
		place, _ := shardPlace(own.URL)
		now = []ShardSetting{{Name: place, URL: own.URL}}
		for _, shard := range next {
			if to, _ := shardPlace(shard.URL); to == place {
				now[0] = shard
			}
		}
		if isFile(own.URL) != isFile(next[0].URL) {
			e.fail(nextVariable, "holds servers where the counters are in a file, or files where they are on a server")
		}
	}
	same := 0
	for i, shard := range next {
		place, _ := shardPlace(shard.URL)
		for _, known := range now {
			switch was, _ := shardPlace(known.URL); {
			case known.Name == shard.Name && was != place:
				e.fail(nextVariable, fmt.Sprintf("has as number %d another database under a name of %s: move the database first, then change the list", i+1, shardsVariable))
			case known.Name != shard.Name && was == place:
				e.fail(nextVariable, fmt.Sprintf("has as number %d a database that has another name in %s: a name decides whose counters lie there", i+1, shardsVariable))
			case known.Name == shard.Name:
				same++
			}
		}
	}
	if same == len(next) && same == len(now) {
		e.fail(nextVariable, "has the databases that counters are in already: leave it out")
	}
	if most := len(now) + len(next) - same; most > ratelimit.MaxShards {
		e.fail(nextVariable, fmt.Sprintf("makes %d databases with those that there are: allowed are %d", most, ratelimit.MaxShards))
	}
	return now, next
}

// ShardsBeside are the shards of both lists, each once, but for the application's own database.
func ShardsBeside(own string, now, next []ShardSetting) (beside []ShardSetting) {
	place, _ := shardPlace(own)
	known := map[string]bool{place: true}
	for _, shard := range slices.Concat(now, next) {
		if place, _ := shardPlace(shard.URL); !known[place] {
			known[place] = true
			beside = append(beside, shard)
		}
	}
	return beside
}

func (e *environment) shardList(variable string, own database.Config, platform bool) (shards []ShardSetting) {
	text := e.text(variable)
	if text == "" {
		return nil
	}
	var problems []string
	wrong := func(i int, reason string) { problems = append(problems, fmt.Sprintf("number %d %s", i+1, reason)) }
	for i, item := range strings.Split(text, ",") {
		item = strings.TrimSpace(item)
		shard := ShardSetting{URL: item}
		if name, rest, found := strings.Cut(item, "="); found && shardName.MatchString(name) {
			shard.Name, shard.URL, shard.named = name, strings.TrimSpace(rest), true
		}
		if item == "" {
			wrong(i, "is empty: there is a comma too many")
			continue
		}
		config := own
		config.URL = shard.URL
		if err := config.Validate(); err != nil {
			if strings.Contains(err.Error(), "TURSO_AUTH_TOKEN") && !strings.Contains(err.Error(), "TURSO_DATABASE_URL") {
				continue // told of with the application's own database
			}
			_, reason, _ := strings.Cut(err.Error(), "TURSO_DATABASE_URL ")
			wrong(i, reason)
			continue
		}
		place, _ := shardPlace(shard.URL)
		if !shard.named {
			shard.Name = place
		}
		if len(shard.Name) > 255 {
			wrong(i, "has a host and path of more than 255 bytes: give it a name, NAME=URL")
		}
		if platform && isFile(shard.URL) {
			wrong(i, "is a file: on the platform it must be a server that all instances share")
		}
		for j, other := range shards {
			switch was, _ := shardPlace(other.URL); {
			case was == place:
				wrong(i, fmt.Sprintf("is the same database as number %d", j+1))
			case other.Name == shard.Name:
				wrong(i, fmt.Sprintf("has the name of number %d", j+1))
			}
		}
		shards = append(shards, shard)
	}
	differ := func(what func(ShardSetting) bool) bool {
		return slices.ContainsFunc(shards, func(shard ShardSetting) bool { return what(shard) != what(shards[0]) })
	}
	if differ(func(shard ShardSetting) bool { return shard.named }) {
		problems = append(problems, "some have names and some have none: allowed is NAME=URL for all or for none")
	}
	if differ(func(shard ShardSetting) bool { return isFile(shard.URL) }) {
		problems = append(problems, "some are files and some are servers")
	}
	if len(shards) > ratelimit.MaxShards {
		problems = append(problems, fmt.Sprintf("%d databases: allowed are %d", len(shards), ratelimit.MaxShards))
	}
	if len(problems) > 0 {
		e.fail(variable, "is no list of databases, separated by commas: "+strings.Join(problems, "; "))
	}
	return shards
}

// shardPlace tells databases apart: the host and path of a server, however its URL is spelled, or the path of a file.
func shardPlace(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	if strings.EqualFold(u.Scheme, "file") {
		return path.Clean(u.Path), nil
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if address, err := netip.ParseAddr(host); err == nil {
		host = address.String()
	}
	if port := strings.TrimLeft(u.Port(), "0"); port != "" && !(port == "443" && u.Scheme != "http") && !(port == "80" && u.Scheme == "http") {
		host += ":" + port
	}
	return host + strings.TrimSuffix((&url.URL{Path: path.Clean("/" + u.Path)}).EscapedPath(), "/"), nil
}
