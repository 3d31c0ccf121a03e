package main

import (
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func TestRouteMatches(t *testing.T) {
	p := start(t, head+`
services:
`+service("a", backend(t, "a"))+service("b", backend(t, "b"))+`
routes:
- {name: host, hostnames: ["*.Shop.example."], matches: [{path: {exact: /host}}], backendRefs: [{name: b}]}
- {name: exact, matches: [{path: {exact: /exact}}], backendRefs: [{name: b}]}
- {name: prefix, matches: [{path: {prefix: /prefix}}], backendRefs: [{name: b}]}
- {name: pattern, matches: [{path: {pattern: "/books/{id}/pages/{page}"}}], backendRefs: [{name: b}]}
- {name: regex, matches: [{path: {regularExpression: "/(x|y)+"}}], backendRefs: [{name: b}]}
- {name: method, matches: [{path: {exact: /m}, method: PUT}], backendRefs: [{name: b}]}
- name: header
  matches:
  - {path: {exact: /h}, headers: [{name: X-A, exact: "1"}, {name: X-B, present: false}]}
  - {path: {exact: /h}, headers: [{name: X-C, prefix: c}]}
  backendRefs: [{name: b}]
- {name: query, matches: [{path: {exact: /q}, queryParams: [{name: v, regularExpression: "[0-9]+"}]}], backendRefs: [{name: b}]}
- {name: other, listeners: [http], matches: [{path: {prefix: /}}], backendRefs: [{name: a}]}
`)
	for _, c := range []struct {
		method, path, want string
		fields             []string
	}{
		{"GET", "/", "a", nil},
		{"GET", "/host", "a", nil},
		{"GET", "/host", "b", []string{"Host: eu.shop.example"}},
		{"GET", "/host", "b", []string{"Host: A.EU.shop.example:80"}},
		{"GET", "/host", "a", []string{"Host: shop.example"}},
		{"GET", "/exact", "b", nil},
		{"GET", "/exact/", "a", nil},
		{"GET", "/%65xact", "b", nil},
		{"GET", "/prefix/../exact", "b", nil},
		{"GET", "/prefix/%2E%2e/exact?a", "b", nil},
		{"GET", "/exact%7C", "a", nil},
		{"GET", "/prefix/x", "b", nil},
		{"GET", "/prefixed", "a", nil},
		{"GET", "/books/7/pages/1", "b", nil},
		{"GET", "/books/7/pages", "a", nil},
		{"GET", "/xyx", "b", nil},
		{"GET", "/xyz", "a", nil},
		{"PUT", "/m", "b", nil},
		{"POST", "/m", "a", nil},
		{"GET", "/h", "b", []string{"X-A: 1"}},
		{"GET", "/h", "a", []string{"X-A: 1", "X-B: "}},
		{"GET", "/h", "b", []string{"X-C: car"}},
		{"GET", "/q?v=12", "b", nil},
		{"GET", "/q?v=x", "a", nil},
		{"GET", "/h", "a", []string{"Gateway-Listener: other"}},
	} {
		a := p.get(t, c.method, c.path, c.fields...)
		assert.Equal(t, http.StatusOK, a.StatusCode)
		assert.Equal(t, c.want, a.Header.Get("X-Backend"), "%s %s %v", c.method, c.path, c.fields)
	}
}

func TestRouteListeners(t *testing.T) {
	p := start(t, `
listeners: [{name: http, address: "127.0.0.1:0"}, {name: inner, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
routes:
- {name: inner, listeners: [inner], directResponse: {status: 200, body: inner}}
- {name: ping, matches: [{path: {exact: /ping}}], directResponse: {status: 418, body: "<b>", contentType: text/html}}
`)
	assert.Equal(t, http.StatusNotFound, p.get(t, "GET", "/").StatusCode)
	ping := p.get(t, "GET", "/ping")
	assert.Equal(t, []any{418, "<b>", "text/html"}, []any{ping.StatusCode, ping.body, ping.Header.Get("Content-Type")})
	a, err := p.send(t.Context(), "GET", "http://"+p.addresses["inner"]+"/ping", "")
	require.NoError(t, err)
	assert.Equal(t, "inner", a.body)
}

func TestRouteEdits(t *testing.T) {
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Shelf", "7")
		_, _ = io.WriteString(w, r.Host+" "+r.RequestURI+" "+r.Header.Get("X-From")+r.Header.Get("X-Secret"))
	})
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", path: {allow: ["%2F"]}}]`, 1)+`
services:
`+service("a", seen)+`
routes:
- name: edit
  matches: [{path: {prefix: /books}}]
  backendRefs: [{name: a}]
  requestHeaderModifier: {set: [{name: X-From, value: gateway}], remove: [X-Secret]}
  responseHeaderModifier: {set: [{name: Cache-Control, value: max-age=5}], remove: [X-Shelf]}
  urlRewrite: {hostname: books.internal, path: {replacePrefixMatch: /v1}}
- {name: encoded, matches: [{path: {prefix: /b%7Cc/d}}], backendRefs: [{name: a}], urlRewrite: {path: {replacePrefixMatch: /v2/}}}
- {name: root, matches: [{path: {prefix: /root}}], backendRefs: [{name: a}], urlRewrite: {path: {replacePrefixMatch: /}}}
- {name: full, matches: [{path: {prefix: /full}}], backendRefs: [{name: a}], urlRewrite: {path: {replaceFullPath: /all}}}
- {name: moved, matches: [{path: {prefix: /library}}], requestRedirect: {hostname: new.example, path: {replacePrefixMatch: /books}, statusCode: 308}}
- {name: itself, matches: [{path: {prefix: /itself}}], requestRedirect: {statusCode: 303}}
- {name: same, matches: [{path: {prefix: /same}}], requestRedirect: {hostname: same.example}}
`)
	a := p.get(t, "GET", "/books/a%2Fb?c=d", "X-Secret: s", "Host: books.example")
	assert.Equal(t, "books.internal /v1/a%2Fb?c=d gateway", a.body)
	assert.Equal(t, []string{"max-age=5", ""}, []string{a.Header.Get("Cache-Control"), a.Header.Get("X-Shelf")})
	assert.Equal(t, "h /v1 gateway", "h"+p.get(t, "GET", "/books").body[len("books.internal"):])
	assert.Equal(t, "x.example /a/b ", p.get(t, "GET", "/root/a/b", "Host: x.example").body)
	assert.Equal(t, "x.example / ", p.get(t, "GET", "/root", "Host: x.example").body)
	assert.Equal(t, "x.example /all?q=1 ", p.get(t, "GET", "/full/a/b?q=1", "Host: x.example").body)
	for target, want := range map[string]string{
		"/books/a|{b}%7c\"<é>\xff?c=|%7C": "/v1/a|{b}%7c\"<é>\xff?c=|%7C", "/root/|/": "/|/",
		"/b|c/d/|%7Ce/": "/v2/|%7Ce/", "/b%7Cc/d": "/v2/",
	} {
		assert.Contains(t, p.raw(t, "GET "+target+" HTTP/1.1\r\nHost: x.example\r\nConnection: close\r\n\r\n"), " "+want+" ", target)
	}
	for target, want := range map[string]string{ // redirects keep the bytes that they do not replace
		"/library/a|{b}%7c\"<é>\xff^`%2f?c=|\\%7C%zz": "new.example/books/a|{b}%7c\"<é>\xff^`%2f?c=|\\%7C%zz",
		"/itself/a|\xff?c=|{}":                        "x.example/itself/a|\xff?c=|{}",
	} {
		assert.Contains(t, p.raw(t, "GET "+target+" HTTP/1.1\r\nHost: x.example\r\nConnection: close\r\n\r\n"), "Location: http://"+want+"\r\n", target)
	}
	a = p.get(t, "GET", "/library/emma?page=2", "Host: old.example")
	assert.Equal(t, []any{308, "http://new.example/books/emma?page=2"}, []any{a.StatusCode, a.Header.Get("Location")})
	a = p.get(t, "GET", "/itself/a%2Fb?page=2", "Host: old.example:81")
	assert.Equal(t, []any{303, "http://old.example:81/itself/a%2Fb?page=2"}, []any{a.StatusCode, a.Header.Get("Location")})
	a = p.get(t, "GET", "/same", "Host: same.example")
	assert.Equal(t, []any{302, "http://same.example/same"}, []any{a.StatusCode, a.Header.Get("Location")})
}

func TestRouteSplit(t *testing.T) {
	p := start(t, head+`
services:
`+service("a", backend(t, "a"))+service("b", backend(t, "b"))+service("gone", "127.0.0.1:1")+`
routes:
- {name: canary, matches: [{path: {exact: /canary}}], backendRefs: [{name: gone}, {name: a}], retry: {attempts: 0}}
- {name: split, backendRefs: [{name: a, weight: 9}, {name: b, weight: 1}]}
`)
	count := map[string]int{}
	for range 400 {
		count[p.get(t, "GET", "/").Header.Get("X-Backend")]++
	}
	assert.InDelta(t, 40, count["b"], 36, "six standard deviations")
	assert.Equal(t, 400, count["a"]+count["b"])

	var failed atomic.Int64
	var group sync.WaitGroup
	for range 40 {
		group.Go(func() {
			if p.get(t, "GET", "/canary").StatusCode >= 500 {
				failed.Add(1)
			}
		})
	}
	group.Wait()
	assert.InDelta(t, 20, failed.Load(), 19, "six standard deviations of the share of a service that is down")
}

// The endpoint fails every other request, and the route retries idempotent ones.
func TestRouteRetriesAndTimeouts(t *testing.T) {
	var requests atomic.Int64
	flaky := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		if requests.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	p := start(t, head+`
services:
`+service("a", flaky)+`
routes:
- {name: slow, matches: [{path: {exact: /slow}}], backendRefs: [{name: a}], timeouts: {request: 50ms}}
- {name: attempt, matches: [{path: {exact: /attempt}}], backendRefs: [{name: a}], urlRewrite: {path: {replaceFullPath: /slow}},
   timeouts: {request: 1m, backendRequest: 20ms}}
- {name: never, matches: [{path: {exact: /never}}], backendRefs: [{name: a}], retry: {attempts: 0}}
- {name: post, matches: [{path: {exact: /post}}], backendRefs: [{name: a}], retry: {nonIdempotent: true}}
- {name: all, backendRefs: [{name: a}]}
`)
	for range 10 {
		assert.Equal(t, http.StatusOK, p.get(t, "GET", "/").StatusCode)
	}
	assert.EqualValues(t, 20, requests.Load())
	assert.Equal(t, http.StatusServiceUnavailable, p.get(t, "POST", "/").StatusCode)
	requests.Store(0)
	assert.Equal(t, http.StatusOK, p.get(t, "POST", "/post").StatusCode)
	requests.Store(0)
	assert.Equal(t, http.StatusServiceUnavailable, p.get(t, "GET", "/never").StatusCode)
	assert.Equal(t, http.StatusGatewayTimeout, p.get(t, "GET", "/slow").StatusCode)
	assert.Equal(t, http.StatusGatewayTimeout, p.get(t, "GET", "/attempt").StatusCode)
}

func TestRouteLimitsAndFaults(t *testing.T) {
	p := start(t, head+`
services:
`+service("a", backend(t, "a"))+`
routes:
- {name: route, matches: [{path: {exact: /route}}], backendRefs: [{name: a}], rateLimit: {requestsPerSecond: 0.01, burst: 3}}
- {name: client, matches: [{path: {exact: /client}}], backendRefs: [{name: a}], rateLimit: {requestsPerSecond: 0.01, burst: 2, per: Client}}
- {name: fault, matches: [{path: {exact: /fault}}], backendRefs: [{name: a}], faults: [{abort: {httpStatus: 418}}]}
- {name: delay, matches: [{path: {exact: /delay}}], backendRefs: [{name: a}], faults: [{fixedDelay: 50ms}]}
`)
	statuses := func(path string, n int) (all []int) {
		for range n {
			all = append(all, p.get(t, "GET", path).StatusCode)
		}
		return all
	}
	assert.Equal(t, []int{200, 200, 200, 429}, statuses("/route", 4))
	assert.Equal(t, []int{200, 200, 429}, statuses("/client", 3))
	seconds, err := strconv.Atoi(p.get(t, "GET", "/client").Header.Get("Retry-After"))
	require.NoError(t, err)
	assert.Positive(t, seconds)
	assert.Equal(t, []int{418}, statuses("/fault", 1))
	began := time.Now()
	assert.Equal(t, []int{200}, statuses("/delay", 1))
	assert.Greater(t, time.Since(began), 50*time.Millisecond)
}

// A client can use all addresses of its IPv6 prefix.
func TestRouteLimitOfIPv6Client(t *testing.T) {
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", trustedProxies: [127.0.0.0/8]}]`, 1)+
		"routes: [{name: all, directResponse: {status: 200}, rateLimit: {requestsPerSecond: 0.01, burst: 1, per: Client}}]\n")
	for _, c := range []struct {
		address string
		status  int
	}{{"2001:db8::1", 200}, {"2001:db8::2", 429}, {"2001:db8:0:1::1", 200}} {
		assert.Equal(t, c.status, p.get(t, "GET", "/", "X-Forwarded-For: "+c.address).StatusCode, c.address)
	}
}

// Each value of a header field has a limit of its own, also of a field that a rule above the limit sets.
func TestRouteLimitByHeader(t *testing.T) {
	p := start(t, head+`routes:
- name: keys
  matches: [{path: {exact: /keys}}]
  directResponse: {status: 200}
  rateLimit: {requestsPerSecond: 0.001, burst: 2, per: Header, header: x-api-key}
- name: users
  basicAuth: {users: ["emma:`+hash(t, "secret")+`", "jane:`+hash(t, "secret")+`"], forwardUsernameHeader: X-User}
  directResponse: {status: 200}
  rateLimit: {requestsPerSecond: 0.001, burst: 1, per: Header, header: X-User}
`)
	password := func(user string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":secret"))
	}
	for i, c := range []struct {
		path, field string
		status      int
	}{
		{"/keys", "X-API-Key: a", 200}, {"/keys", "x-api-key: a", 200}, {"/keys", "X-API-Key: a", 429},
		{"/keys", "X-API-Key: b", 200}, {"/keys", "A: b", 200}, {"/keys", "A: c", 200}, {"/keys", "A: d", 429},
		{"/", "X-User: emma", 401}, {"/", password("emma"), 200}, {"/", password("emma"), 429}, {"/", password("jane"), 200},
	} {
		a := p.get(t, "GET", c.path, c.field)
		assert.Equal(t, c.status, a.StatusCode, i)
		assert.Equal(t, c.status == 429, a.Header.Get("Retry-After") != "", i)
	}
	assert.Contains(t, output(t, "explain", p.file, "GET", "http://a/keys"), "limits   0.001 requests a second per value of x-api-key\n")
}

func TestRouteMirrorsAndHedges(t *testing.T) {
	copies := make(chan string, 10)
	next := serverAt(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		copies <- r.Method + " " + r.URL.Path + " " + string(body)
	})
	var stuck atomic.Int64
	slow := serverAt(t, func(_ http.ResponseWriter, r *http.Request) {
		if stuck.Add(1) == 1 {
			<-r.Context().Done()
		}
	})
	p := start(t, head+`
services:
`+service("a", backend(t, "a"))+service("gateway", next)+service("slow", slow)+`
routes:
- {name: hedged, matches: [{path: {exact: /hedged}}], backendRefs: [{name: slow}], hedge: {delay: 10ms}}
- {name: mirrored, backendRefs: [{name: a}], requestMirrors: [{backendRef: {name: gateway}, maxBodyBytes: 100}]}
`)
	a, err := p.send(t.Context(), "POST", "http://"+p.addresses["http"]+"/books", "Persuasion")
	require.NoError(t, err)
	assert.Equal(t, "a", a.Header.Get("X-Backend"))
	assert.Equal(t, "POST /books Persuasion", <-copies)
	assert.Equal(t, http.StatusOK, p.get(t, "GET", "/hedged").StatusCode)
	assert.EqualValues(t, 2, stuck.Load())
}

// Requests with the same key reach the same endpoint.
func TestServiceConsistentHash(t *testing.T) {
	p := start(t, head+`
services:
- name: a
  static: {addresses: ["`+backend(t, "1")+`", "`+backend(t, "2")+`", "`+backend(t, "3")+`"]}
  loadBalancer: {policy: ConsistentHash, hash: {cookie: session}}
routes:
- {name: all, backendRefs: [{name: a}]}
`)
	of := func(user int) string {
		return p.get(t, "GET", "/", "Cookie: session="+strconv.Itoa(user)).Header.Get("X-Backend")
	}
	until(t, func() bool { // a session may move before all servers are connected
		used := map[string]bool{}
		for user := range 50 {
			used[of(user)] = true
		}
		return len(used) == 3
	})
	for user := range 20 {
		first := of(user)
		for range 3 {
			assert.Equal(t, first, of(user))
		}
	}
}

// The statuses that a route retries by default.
func TestRetriedStatuses(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	p := start(t, head+`
services: [{name: a, protocol: HTTP1, static: {addresses: ["`+serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if code, ok := strings.CutPrefix(r.URL.Path, "/grpc-"); ok {
			w.Header().Set("Grpc-Status", code)
			return
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	})+`"]}}]
retryBudget: {minRetryRate: 100}
routes:
- {name: all, backendRefs: [{name: a}], retry: {attempts: 1}}
`)
	for status, want := range map[int]int64{
		200: 1, 400: 1, 404: 1, 408: 1, 425: 2, 429: 1, 500: 1, 501: 1, 502: 2, 503: 2, 504: 2, 505: 1,
	} {
		requests.Store(0)
		assert.Equal(t, status, p.get(t, "GET", "/"+strconv.Itoa(status)).StatusCode)
		assert.Equal(t, want, requests.Load(), status)
		requests.Store(want - 1)
		assert.Equal(t, status, p.get(t, "GET", "/"+strconv.Itoa(status), "Early-Data: 1").StatusCode)
		assert.Equal(t, want, requests.Load(), "the client repeats it: %d", status)
		assert.Equal(t, status, p.get(t, "POST", "/"+strconv.Itoa(status)).StatusCode)
		assert.Equal(t, want+1, requests.Load(), "POST is not idempotent: %d", status)
	}
	for code := range 17 {
		requests.Store(0)
		p.get(t, "GET", "/grpc-"+strconv.Itoa(code), "Content-Type: application/grpc")
		want := int64(1)
		if codes.Code(code) == codes.Unavailable {
			want = 2
		}
		assert.Equal(t, want, requests.Load(), codes.Code(code))
	}
}

// Services get a path, also if the client has sent an absolute target. Its authority takes precedence over Host.
func TestAbsoluteTarget(t *testing.T) {
	p := start(t, head+"services:\n"+service("a", backend(t, "a"))+"routes: [{name: all, backendRefs: [{name: a}]}]\n")
	for target, want := range map[string]string{
		"http://books.example/p?q": "a GET books.example /p?q", "https://books.example:8443/p%7C": "a GET books.example:8443 /p%7C",
		"http://books.example/p|q?a|b": "a GET books.example /p|q?a|b",
		"http://books.example":         "a GET books.example /", "http://books.example?q": "a GET books.example /?q",
	} {
		rsp := p.raw(t, "GET "+target+" HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n")
		assert.True(t, strings.HasSuffix(rsp, "\r\n\r\n"+want), rsp)
	}
}
