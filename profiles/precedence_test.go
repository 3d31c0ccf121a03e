package profiles

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each route takes precedence over the next one. All match the request.
func TestPrecedenceMostSpecific(t *testing.T) {
	x, y := Header{Name: "x-a", Value: AnyValue{}}, Header{Name: "x-b", Value: Exact("1")}
	q := Query{"q", AnyValue{}}
	matches := []Match{
		All{Host{Exact("a.b.example")}, PathPrefix("/")},
		All{Host{Suffix(".b.example")}, PathPrefix("/")},
		Any{All{Host{Suffix(".example")}, Path("/books/1")}, Path("/other")},
		All{Host{Suffix(".example")}, x, y, PathPrefix("/")},
		All{Path("/books/[0-9]+"), Method("GET")},
		Path("/books/1"),
		All{PathPrefix("/books"), x, y},
		All{PathPrefix("/books"), x, q, Method("GET")},
		All{PathPrefix("/books"), x, Method("GET")},
		All{PathPrefix("/books"), x},
		All{PathPrefix("/books"), q},
		All{PathPrefix("/books"), Method("GET")},
		PathPrefix("/books"),
		All{PathPrefix("/"), x},
		PathPrefix("/"),
	}
	f := facts{method: "GET", path: "/books/1", query: "q=1", authority: "a.b.example:80", header: httpFields{"X-A": {"0"}, "X-B": {"1"}}}
	for i := range matches {
		p := &Profile{Precedence: MostSpecific}
		for j := len(matches) - 1; j >= i; j-- {
			p.Routes = append(p.Routes, Route{Name: fmt.Sprint(j), Match: matches[j]})
		}
		require.Equal(t, fmt.Sprint(i), found(snapshotOf(p), f))
	}
}

// The first of equal routes applies.
func TestPrecedenceEqual(t *testing.T) {
	p := &Profile{Precedence: MostSpecific, Routes: []Route{
		{Name: "root", Match: PathPrefix("/")},
		{Name: "first", Match: Any{PathPrefix("/a"), PathPrefix("/b")}},
		{Name: "second", Match: Any{PathPrefix("/b"), PathPrefix("/b/c")}},
	}}
	for path, want := range map[string]string{"/": "root", "/a": "first", "/b": "first", "/b/c": "second"} {
		require.Equal(t, want, found(snapshotOf(p), on("GET", path)), path)
	}
}

func TestPrecedenceGRPC(t *testing.T) {
	p := &Profile{Precedence: MostSpecific, Routes: []Route{
		{Name: "any", Match: GRPC{}},
		{Name: "method", Match: GRPC{Method: "Get"}},
		{Name: "service", Match: GRPC{Service: "books"}},
		{Name: "both", Match: GRPC{"books", "Get"}},
	}}
	for path, want := range map[string]string{"/x/List": "any", "/x/Get": "method", "/books/List": "service", "/books/Get": "both"} {
		require.Equal(t, want, found(snapshotOf(p), on("POST", path)), path)
	}
}
