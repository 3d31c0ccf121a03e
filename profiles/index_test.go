package profiles

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// probe is a request that counts the facts that were read.
type probe struct {
	facts
	asked map[string]int
}

func (p *probe) ask(what string) {
	if p.asked != nil {
		p.asked[what]++
	}
}

type probeAccess struct{}

func (probeAccess) Method(p *probe) string              { p.ask("method"); return p.method }
func (probeAccess) Scheme(*probe) string                { return "" }
func (probeAccess) Authority(p *probe) string           { p.ask("authority"); return p.authority }
func (probeAccess) Path(p *probe) string                { p.ask("path"); return p.path }
func (probeAccess) Query(p *probe) string               { p.ask("query"); return p.query }
func (probeAccess) Source(*probe) netip.AddrPort        { return netip.AddrPort{} }
func (probeAccess) RequestHeader(p *probe) layer.Header { p.ask("header"); return p.header }
func (probeAccess) Status(int) int                      { return 200 }
func (probeAccess) ResponseHeader(int) layer.Header     { return httpFields(nil) }
func (probeAccess) ResponseTrailer(int) layer.Header    { return httpFields(nil) }
func (probeAccess) Complete(ctx context.Context, rsp int, o layer.Observer) int {
	return layer.AtReturn(ctx, rsp, o)
}

// routerFor returns a Router without a source.
func routerFor() *Router[*probe, int] {
	r := &Router[*probe, int]{
		backendServices: make(map[backendKey]backendService[*probe, int]),
		target:          "web:80", life: context.Background(), access: probeAccess{}, services: make(map[string]layer.Service[*probe, int]),
		mk: func(string) layer.Service[*probe, int] { return nil },
	}
	r.config.Log = slog.New(slog.DiscardHandler)
	return r
}

func snapshotOf(p *Profile) *snapshot[*probe, int] { return routerFor().compile(p, nil) }

// first returns the name of the route that the method match of a snapshot must find: the first
// route with a condition that holds by its definition.
func first(p *Profile, f facts) string {
	f.path = escaped(f.path)
	for _, r := range p.Routes {
		if holds, valid := naive(r.Match, f); holds && valid {
			return r.Name
		}
	}
	return ""
}

func found(s *snapshot[*probe, int], f facts) string {
	if route := s.match(probeAccess{}, &probe{facts: f}); route != nil {
		return route.info.Name
	}
	return ""
}

func requests(t *rapid.T) facts {
	path := rapid.SampledFrom([]string{
		"", "/", "/a", "/b", "/A", "/a/", "/a/b", "/ab", "/a/b/c", "/b/a", "/x/b", "//", "//b", "/a/7", "/a/é/b", "/books.v1/Get", "/books.v1/List",
	}).Draw(t, "path")
	if rapid.Bool().Draw(t, "any path") {
		path = paths().Draw(t, "path")
	}
	f := facts{
		method:    rapid.SampledFrom([]string{"GET", "PUT", "get", ""}).Draw(t, "method"),
		path:      path,
		query:     rapid.SampledFrom([]string{"", "v=1", "v=2&v=1", "v", "v=%"}).Draw(t, "query"),
		authority: rapid.SampledFrom([]string{"", "a:80", "A", "b", "x.b", "y.X.b.:80", ".b"}).Draw(t, "authority"),
	}
	header := httpFields{}
	if v := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "header"); v != "" {
		header["X-V"] = []string{"0", v}
	}
	f.header = header
	return f
}

// The index returns the same route as a walk over the list.
func TestIndexModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Profile{}
		for i, m := range rapid.SliceOfN(trees(), 0, 40).Draw(t, "routes") {
			p.Routes = append(p.Routes, Route{Name: fmt.Sprint(i), Match: m})
		}
		s := snapshotOf(p)
		for range 10 {
			f := requests(t)
			require.Equal(t, first(p, f), found(s, f), "%v", f)
		}
	})
}

// FuzzIndex makes a profile of the lines of a text, each a pattern or, behind
// a sign, another kind of condition.
func FuzzIndex(f *testing.F) {
	f.Add("/a\n/a/[^/]*\n/a|/b\n+/a\n!/b\n#GET\n.*", "/a/b", "GET")
	f.Add("!+/\n&/a.*\n+/a/b\n#PUT\n", "/a/b/", "PUT")
	f.Add("(\n%(\n%+x\n/a/[a-z]+/b", "/a/x/b", "GET")
	f.Fuzz(func(t *testing.T, lines, path, method string) {
		if len(lines)+len(path) > maxFuzz {
			return
		}
		p := &Profile{}
		for i, line := range strings.SplitN(lines, "\n", 30) {
			p.Routes = append(p.Routes, Route{Name: fmt.Sprint(i), Match: conditionOf(line)})
		}
		s := snapshotOf(p)
		for _, path := range append(strings.SplitN(lines, "\n", 30), path) {
			f := facts{method: method, path: path, header: httpFields(nil)}
			require.Equal(t, first(p, f), found(s, f), "%v", f)
		}
	})
}

func conditionOf(line string) Match {
	if line == "" {
		return nil
	}
	rest := line[1:]
	switch line[0] {
	case '+':
		return PathPrefix(rest)
	case '#':
		return Method(rest)
	case '!':
		return Not{conditionOf(rest)}
	case '&':
		return All{Not{PathPrefix("/b")}, conditionOf(rest)}
	case '%':
		return Any{conditionOf(rest), Path("/a"), Method("PUT")}
	case '@':
		service, method, _ := strings.Cut(rest, " ")
		return GRPC{service, method}
	}
	return Path(line)
}

// A match in one branch does not hide an earlier route in another branch, also after
// a split.
func TestIndexBranches(t *testing.T) {
	for _, routes := range [][]Match{
		{Path("/[^/]*/bcd"), Path("/[^/]*/bxy"), Path("/a/bcd")},
		{PathPrefix("/a"), Path("/[^/]*/bxy"), Path("/a/bcd")},
		{Method("GET"), Path("/[^/]*/bcd"), Path("/a/bcd")},
		{Path(".*d"), PathPrefix("/a/bcd"), Path("/a/bcd")},
		{Any{Path("/x"), Path("/a/b.*")}, Path("/a/bx"), Path("/a/bcd")},
	} {
		p := &Profile{}
		for i, m := range routes {
			p.Routes = append(p.Routes, Route{Name: strconv.Itoa(i), Match: m})
		}
		require.Equal(t, "0", found(snapshotOf(p), on("GET", "/a/bcd")), "%v", routes)
		p.Routes = p.Routes[1:]
		require.Equal(t, first(p, on("GET", "/a/bcd")), found(snapshotOf(p), on("GET", "/a/bcd")), "%v", routes)
	}
}

// Only facts that a condition needs are read, each once. The authority is read if a route has a host.
func TestIndexReadsNeededFacts(t *testing.T) {
	s := snapshotOf(&Profile{Routes: []Route{
		{Name: "books", Match: All{Path("/books"), Header{Name: "x-v", Value: Exact("1")}}},
		{Name: "same", Match: All{Path("/books"), Header{Name: "x-v", Value: Exact("2")}, Query{"q", AnyValue{}}}},
		{Name: "authors", Match: Path("/authors")},
		{Name: "host", Match: Any{Host{Exact("h")}}},
	}})
	for _, tt := range []struct {
		facts
		want  string
		asked map[string]int
	}{
		{on("GET", "/authors"), "authors", map[string]int{"method": 1, "path": 1, "authority": 1}},
		{facts{path: "/books", header: httpFields{"X-V": {"2"}}, query: "q"}, "same", map[string]int{"method": 1, "path": 1, "authority": 1, "header": 1, "query": 1}},
		{facts{path: "/x", authority: "h:1"}, "host", map[string]int{"method": 1, "path": 1, "authority": 1}},
	} {
		req := &probe{facts: tt.facts, asked: map[string]int{}}
		route := s.match(probeAccess{}, req)
		require.NotNil(t, route)
		require.Equal(t, tt.want, route.info.Name)
		require.Equal(t, tt.asked, req.asked)
	}
}

func TestIndexAllocatesNothing(t *testing.T) {
	if raceEnabled() {
		t.Skip("the race detector empties pools, that of package regexp too")
	}
	s := snapshotOf(&Profile{Routes: []Route{
		{Name: "0", Match: All{Path("/books/[^/]+"), Header{Name: "x-v", Value: Regex("[0-9]+")}}},
		{Name: "1", Match: All{PathPrefix("/books"), Query{"v", Exact("a-b")}}},
		{Name: "2", Match: All{GRPC{"books", ""}, Host{Prefix("x")}}},
		{Name: "3", Match: Any{Path("/authors|/x"), Path("/(a|b)+")}},
		{Name: "4", Match: All{Path("/books/[a-z0-9]+"), Host{Exact("web")}, Header{Name: "x-v", Value: Exact("one")}, Query{"v", Prefix("b-")}}},
	}})
	req := &probe{facts: facts{
		method: "GET", path: "/books/7", query: "v=b-c", authority: "WEB:80", header: httpFields{"X-V": {"one"}},
	}}
	name := ""
	require.Zero(t, testing.AllocsPerRun(100, func() { name = s.match(probeAccess{}, req).info.Name }))
	require.Equal(t, "4", name)
}
