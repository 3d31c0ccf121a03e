package learn_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/examples/tapctl/learn"
	"github.com/gotower/gotower/profiles/file"
	"github.com/gotower/gotower/tap"
)

// seen adds one request with its response.
func seen(p *learn.Profiles, stream int, method, authority, path string, status int, grpc *codes.Code) {
	id := tap.StreamID{Stream: uint64(stream)}
	p.Add("a", tap.Event{ID: id, RequestInit: &tap.RequestInit{Method: method, Authority: authority, Path: path}})
	if status > 0 {
		p.Add("a", tap.Event{ID: id, ResponseInit: &tap.ResponseInit{Status: status}})
	}
	p.Add("a", tap.Event{ID: id, ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 12 * time.Millisecond, GRPCStatus: grpc}})
}

func Example() {
	var p learn.Profiles
	const web = "web.default.svc.cluster.local:80"
	seen(&p, 1, "GET", web, "/books", 200, nil)
	seen(&p, 2, "GET", web, "/books/17", 200, nil)
	seen(&p, 3, "GET", web, "/books/18", 503, nil)
	seen(&p, 4, "GET", web, "/books/new", 200, nil)
	seen(&p, 5, "GET", web, "/wp-login.php", 404, nil)
	if _, err := p.Write(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// # 3 routes of 4 requests that were seen: 1 failed, the slowest took 12ms.
	// # Routes without requests are missing. Add isRetryable and timeout where needed.
	// apiVersion: linkerd.io/v1alpha2
	// kind: ServiceProfile
	// metadata:
	//   name: web.default.svc.cluster.local
	//   namespace: default
	// spec:
	//   routes:
	//   - condition:
	//       method: GET
	//       pathRegex: /books
	//     name: GET /books
	//   - condition:
	//       method: GET
	//       pathRegex: /books/new
	//     name: GET /books/new
	//   - condition:
	//       method: GET
	//       pathRegex: /books/[^/]*
	//     name: GET /books/{id}
}

func written(t require.TestingT, p *learn.Profiles) (text string, documents int) {
	var b strings.Builder
	n, err := p.Write(&b)
	require.NoError(t, err)
	return b.String(), n
}

func TestProfilesMergeIDs(t *testing.T) {
	var p learn.Profiles
	for i := range 500 {
		word := strings.Repeat(string(rune('a'+i%26)), i/26+1)
		seen(&p, i, "GET", "web", "/users/"+word+"/cart", 200, nil)
	}
	seen(&p, 501, "GET", "web", "/files/6ba7b810-9dad-11d1-80b4-00c04fd430c8", 200, nil)
	text, n := written(t, &p)
	require.Equal(t, 1, n)
	require.Contains(t, text, "pathRegex: /users/[^/]*/cart\n")
	require.Contains(t, text, "pathRegex: /files/[^/]*\n")
	require.Equal(t, 2, strings.Count(text, "pathRegex"))
}

func TestProfilesGRPCMethods(t *testing.T) {
	var p learn.Profiles
	ok, missing := codes.OK, codes.Unimplemented
	for i := range 60 {
		seen(&p, i, "POST", "voting:8080", fmt.Sprintf("/emojivoto.v1.VotingService/Vote%dWithALongName2", i), 200, &ok)
	}
	seen(&p, 61, "POST", "voting:8080", "/emojivoto.v1.VotingService/Nothing", 200, &missing)
	text, _ := written(t, &p)
	require.Equal(t, 60, strings.Count(text, "pathRegex"))
	require.Contains(t, text, `/emojivoto\.v1\.VotingService/Vote7WithALongName2`)
	require.NotContains(t, text, "Nothing")
}

func TestProfilesSkipRequests(t *testing.T) {
	var p learn.Profiles
	seen(&p, 1, "GET", "10.0.0.1:80", "/", 200, nil)
	seen(&p, 2, "GET", "[::1]:80", "/", 200, nil)
	seen(&p, 3, "GET", "", "/", 200, nil)
	seen(&p, 4, "GET", "web", "/", 0, nil)
	seen(&p, 5, "GET", "web", "/", 405, nil)
	seen(&p, 6, "OPTIONS", "web", "*", 200, nil)
	seen(&p, 7, "GET", "web", "/"+strings.Repeat("a/", 40), 200, nil)
	for i, odd := range []string{"\x7f", "\u009b2J", "\u202e", "\x1b[2J", "\xff"} {
		seen(&p, 10+i, "GET", "web", "/"+odd, 200, nil)
		seen(&p, 20+i, "GET", "web"+odd, "/", 200, nil)
		seen(&p, 30+i, "GET"+odd, "web", "/", 200, nil)
	}
	text, n := written(t, &p)
	require.Zero(t, n, text)
}

// For any requests, the written profiles are valid and the memory is bounded.
func TestProfilesLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p learn.Profiles
		for i := range rapid.IntRange(1, 60).Draw(t, "requests") {
			path := "/" + rapid.StringMatching(`([a-z0-9.%+()*-]{0,6}/){0,4}[a-zA-Z0-9_~:@!$]{0,12}`).Draw(t, "path")
			seen(&p, i, rapid.SampledFrom([]string{"GET", "POST", "PROPFIND"}).Draw(t, "method"),
				rapid.SampledFrom([]string{"web.default.svc.cluster.local:80", "voting", "API.example.com:8080"}).Draw(t, "authority"),
				path, 200, nil)
		}
		text, n := written(t, &p)
		require.Positive(t, n)
		set, err := file.Parse("seen.yaml", []byte(text))
		require.NoError(t, err, text)
		require.Empty(t, set.Warnings)
	})
}
