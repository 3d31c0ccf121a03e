package file

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

type object map[string]any

// draw helps to draw a profile and, beside it, how the short form writes it.
type draw struct{ *rapid.T }

func (d draw) int(low, high int) int { return rapid.IntRange(low, high).Draw(d.T, "n") }

func (d draw) pick(from ...string) string { return rapid.SampledFrom(from).Draw(d.T, "word") }

func (d draw) duration() (time.Duration, string) {
	t := time.Duration(d.int(0, 100000)) * time.Microsecond
	return t, t.String()
}

func (d draw) text() (profiles.StringMatch, any) {
	s := d.pick("a", "B.c", "true", "007", "é{", "~")
	var m profiles.StringMatch
	written := object{}
	switch d.int(0, 7) {
	case 0:
		return profiles.Exact(s), s
	case 1:
		m, written["exact"] = profiles.Exact(s), s
	case 2:
		m, written["prefix"] = profiles.Prefix(s), s
	case 3:
		m, written["suffix"] = profiles.Suffix(s), s
	case 4:
		m, written["contains"] = profiles.Contains(s), s
	case 5:
		m, written["regex"] = profiles.Regex(s), s
	case 6:
		r := profiles.Range{Min: int64(d.int(-9, 0)), Max: int64(d.int(0, 9))}
		m, written["range"] = r, fmt.Sprintf("%d-%d", r.Min, r.Max)
	default:
		return profiles.AnyValue{}, object{"present": true}
	}
	if d.int(0, 1) == 0 {
		m, written["ignoreCase"] = profiles.IgnoreCase{Value: m}, true
	}
	return m, written
}

// leaf draws one condition on requests.
func (d draw) leaf() (profiles.Match, object) {
	switch d.int(0, 7) {
	case 0:
		method := d.pick("GET", "POST", "HEAD", "PROPFIND")
		return profiles.Method(method), object{"method": method}
	case 1:
		path := d.pick("/", "/a.b", "/a|b", "/^x$", `/\d`, "/ ", "/%2F")
		return profiles.Path("^" + regexp.QuoteMeta(path) + "$"), object{"path": path}
	case 2:
		prefix := d.pick("/", "/a", "/a/b/")
		return profiles.PathPrefix(prefix), object{"pathPrefix": prefix}
	case 3:
		regex := d.pick("/a|/b", "^/x$", "/[^/]*")
		return profiles.Path("^(?:" + regex + ")$"), object{"pathRegex": regex}
	case 4:
		text, written := d.text()
		return profiles.Host{Value: text}, object{"host": written}
	case 5:
		text, written := d.text()
		return profiles.Header{Name: "x-a", Value: text}, object{"header": object{"x-a": written}}
	case 6:
		text, written := d.text()
		return profiles.Query{Name: "q[]", Value: text}, object{"query": object{"q[]": written}}
	}
	return profiles.GRPC{Service: "a.v1.B", Method: "C"}, object{"grpc": object{"service": "a.v1.B", "method": "C"}}
}

func (d draw) status() (profiles.Match, object) {
	switch d.int(0, 5) {
	case 0:
		s := profiles.GRPCStatus{Min: uint32(d.int(0, 10)), Max: uint32(d.int(10, 16))}
		if d.int(0, 1) == 0 {
			return s, object{"grpc": fmt.Sprintf("%d-%d", s.Min, s.Max)}
		}
		return s, object{"grpc": grpcNames()[s.Min] + "-" + grpcNames()[s.Max]}
	case 1:
		text, written := d.text()
		return profiles.Trailer{Name: "x-t", Value: text}, object{"trailer": object{"x-t": written}}
	}
	low := d.int(100, 999)
	if d.int(0, 1) == 0 {
		return profiles.Status{Min: low, Max: low}, object{"status": low}
	}
	high := d.int(low, 999)
	return profiles.Status{Min: low, Max: high}, object{"status": fmt.Sprintf("%d-%d", low, high)}
}

// tree draws a condition with leaves of one kind; it has at least one member.
func (d draw) tree(depth int, leaf func() (profiles.Match, object)) (profiles.Match, object) {
	kind := d.int(0, 3)
	if depth == 0 || kind == 0 {
		return leaf()
	}
	if kind == 1 {
		m, written := d.tree(depth-1, leaf)
		return profiles.Not{Match: m}, object{"not": written}
	}
	var members []profiles.Match
	var list []object
	for range d.int(1, 3) {
		m, written := d.tree(depth-1, leaf)
		members, list = append(members, m), append(list, written)
	}
	if kind == 2 {
		return profiles.All(members), object{"all": list}
	}
	return profiles.Any(members), object{"any": list}
}

func (d draw) route() (profiles.Route, object) {
	var r profiles.Route
	o := object{}
	r.Name = d.pick("a", "GET /", "0")
	r.Match, o["match"] = d.tree(3, d.leaf)
	r.Labels = map[string]string{"team": d.pick("x", "y: z", "")}
	r.Timeout, o["timeout"] = d.duration()
	r.TimeoutAfterBody = d.int(0, 1) == 1
	o["timeoutAfterBody"] = r.TimeoutAfterBody
	r.AttemptTimeout, o["tryTimeout"] = d.duration()
	r.Hedge, o["hedge"] = d.duration()
	retry := profiles.Retry{Max: d.int(0, 99)}
	o["maxRetries"] = retry.Max
	switch d.int(0, 3) {
	case 0:
		o["retry"] = false
	case 1:
		r.Retry, o["retry"] = &retry, true
	default:
		r.Retry, retry.NonIdempotent = &retry, d.int(0, 1) == 1
		o["retry"] = object{"nonIdempotent": retry.NonIdempotent}
	}
	r.Limit = d.int(0, 1000)
	r.Rate = profiles.Rate{PerSecond: float64(d.int(1, 100)) / 8, Burst: d.int(0, 3)}
	own := d.int(0, 1) == 1
	if own {
		r.Labels["route"] = d.pick("b", "")
	}
	o["name"], o["labels"], o["limit"] = r.Name, maps.Clone(r.Labels), r.Limit
	if !own {
		r.Labels["route"] = r.Name
	}
	o["rate"] = object{"perSecond": r.Rate.PerSecond, "burst": r.Rate.Burst}
	var classes []object
	for range d.int(1, 3) {
		m, written := d.tree(2, d.status)
		c := profiles.ResponseClass{Match: m, Failure: d.int(0, 1) == 1}
		r.Classes = append(r.Classes, c)
		classes = append(classes, object{"match": written, "failure": c.Failure})
	}
	o["classes"] = classes
	r.RequestHeader, o["requestHeader"] = d.changes()
	r.ResponseHeader, o["responseHeader"] = d.changes()
	d.answers(&r, o)
	return r, o
}

func (d draw) endpoint() (*resolve.Endpoint, object) {
	e := &resolve.Endpoint{Labels: map[string]string{"zone": d.pick("a", "b")}, Weight: uint32(d.int(1, 20000))}
	e.ID = resolve.ID{
		Addr:     netip.AddrPortFrom(netip.MustParseAddr(d.pick("10.0.0.1", "fd00::1")), uint16(d.int(1, 65535))),
		Protocol: resolve.H2, ServerName: "web.ns", Identity: d.pick("web.ns", "spiffe://root/ns/web"),
		Authority: d.pick("web", "web:80"), OpaquePort: 4143,
	}
	var interval, timeout string
	e.PingInterval, interval = d.duration()
	e.PingTimeout, timeout = d.duration()
	e.PingWhileIdle = true
	return e, object{
		"pingInterval": interval, "pingTimeout": timeout, "pingWhileIdle": true,
		"addr": e.Addr, "labels": e.Labels, "weight": e.Weight, "protocol": "h2",
		"serverName": e.ServerName, "identity": e.Identity, "authority": e.Authority, "opaquePort": e.OpaquePort,
	}
}

func (d draw) profile() (profiles.Profile, object) {
	p := profiles.Profile{
		Name: d.pick("web.ns", "API_1."), OpaqueProtocol: d.int(0, 1) == 1,
		Precedence: profiles.Precedence(d.int(0, 1)), RoutesOnly: d.int(0, 1) == 1,
		Distribution: profiles.Distribution(d.int(0, 2)),
		Targets:      []profiles.Target{{Authority: "web-v2:81", Weight: uint32(d.int(0, 1000))}},
		RetryBudget: &profiles.RetryBudget{
			Ratio: float64(d.int(0, 8000)) / 8, MinPerSecond: uint32(d.int(0, 100)), TTL: time.Duration(d.int(1, 60)) * time.Second,
		},
	}
	var routes []object
	for range d.int(1, 4) {
		r, o := d.route()
		p.Routes, routes = append(p.Routes, r), append(routes, o)
	}
	o := object{
		"target": "web.ns:80", "name": p.Name, "opaque": p.OpaqueProtocol, "routes": routes,
		"precedence": []string{"firstMatch", "mostSpecific"}[p.Precedence], "routesOnly": p.RoutesOnly,
		"distribution": []string{"fixedShares", "randomAvailable", "firstAvailable"}[p.Distribution],
		"split":        object{"web-v2:81": p.Targets[0].Weight},
		"retryBudget":  object{"ratio": p.RetryBudget.Ratio, "minPerSecond": p.RetryBudget.MinPerSecond, "ttl": p.RetryBudget.TTL.String()},
	}
	if d.int(0, 1) == 1 { // everything goes there: nothing else selects a target
		p.Endpoint, o["endpoint"] = d.endpoint()
		p.Name, p.Targets = "", nil
		delete(o, "name")
		delete(o, "split")
	}
	return p, o
}

// The short form has all fields of a Profile, except those of client policies and programs.
func TestShortFormRoundTrip(t *testing.T) {
	covered := map[string]bool{} // the fields that had a value once
	rapid.Check(t, func(t *rapid.T) {
		want, written := draw{t}.profile()
		data, err := json.Marshal(written)
		require.NoError(t, err)
		s, err := Parse("f", data)
		require.NoError(t, err, "%s", data)
		got := s.Profile("web.ns:80")
		require.Equal(t, &want, got, "%s", data)
		require.NoError(t, got.Validate())
		note(covered, reflect.ValueOf(want))
		if want.Endpoint != nil {
			note(covered, reflect.ValueOf(want.Endpoint.ID))
		}
		for _, r := range got.Routes {
			note(covered, reflect.ValueOf(r))
			note(covered, reflect.ValueOf(r.RequestHeader))
			note(covered, reflect.ValueOf(r.Faults[0]))
			note(covered, reflect.ValueOf(*r.Rewrite))
			note(covered, reflect.ValueOf(*r.Respond))
			note(covered, reflect.ValueOf(r.Mirrors[0]))
			if r.Redirect != nil {
				note(covered, reflect.ValueOf(*r.Redirect))
			}
		}
	})
	others := []string{ // only client policies and programs have these
		"Profile.Policy", "Profile.Value", "Route.RequestTimeout", "Route.ResponseTimeout", "Route.IdleTimeout", "Route.Overrides",
		"Route.Backends", "Route.Distribution", "Route.Value",
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[profiles.Profile](), reflect.TypeFor[profiles.Route](), reflect.TypeFor[resolve.ID](),
		reflect.TypeFor[layer.HeaderMutation](), reflect.TypeFor[profiles.Redirect](), reflect.TypeFor[profiles.Fault](),
		reflect.TypeFor[profiles.Mirror](), reflect.TypeFor[profiles.Rewrite](), reflect.TypeFor[layer.DirectResponse](),
	} {
		for field := range of.Fields() {
			name := of.Name() + "." + field.Name
			if slices.Contains(others, name) {
				continue
			}
			require.True(t, covered[name], "the short form has nothing for %s: let it, in short.go and above", name)
		}
	}
}

func note(covered map[string]bool, v reflect.Value) {
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			covered[v.Type().Name()+"."+v.Type().Field(i).Name] = true
		}
	}
}

// grpcNames returns the names of the gRPC status codes by their number.
func grpcNames() []string {
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
}
