package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Rules by the address of the client use the address behind a trusted proxy, as do conditions of routes.
func TestClientCIDRs(t *testing.T) {
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", trustedProxies: [127.0.0.0/8], clientCIDRs: {deny: [192.0.2.0/24]}}]`, 1)+`
routes:
- {name: inner, matches: [{clientCIDRs: [10.0.0.0/8, "fd00::/8"]}], directResponse: {status: 200, body: inner}}
- {name: admin, matches: [{path: {exact: /admin}}], clientCIDRs: {allow: [198.51.100.0/24, 203.0.113.7], deny: [198.51.100.9]}, directResponse: {status: 200, body: admin}}
- {name: rest, directResponse: {status: 200, body: rest}}
`)
	for _, c := range []struct{ client, path, want string }{
		{"10.1.2.3", "/admin", "200 inner"}, {"fd00::7", "/", "200 inner"}, {"11.0.0.1", "/", "200 rest"}, {"", "/", "200 rest"},
		{"198.51.100.1", "/admin", "200 admin"}, {"203.0.113.7", "/admin", "200 admin"}, {"203.0.113.8", "/admin", "403"},
		{"198.51.100.9", "/admin", "403"}, {"198.51.100.9", "/", "200 rest"}, {"192.0.2.1", "/", "403"}, {"192.0.2.1, 10.0.0.1", "/", "200 inner"},
	} {
		var fields []string
		if c.client != "" {
			fields = append(fields, "X-Forwarded-For: "+c.client)
		}
		a := p.get(t, "GET", c.path, fields...)
		got := a.Status[:3]
		if a.StatusCode == http.StatusOK {
			got += " " + a.body
		}
		assert.Equal(t, c.want, got, "%s %s", c.client, c.path)
	}
	file := p.file
	assert.Contains(t, output(t, "explain", file, "GET", "http://a/", "-client", "10.0.0.1"), "route    inner\n")
	assert.Contains(t, output(t, "explain", "-client", "11.0.0.1", file, "GET", "http://a/"), "failed=any (source in 10.0.0.0/8, source in fd00::/8)")
	require.ErrorContains(t, run(t.Context(), []string{"explain", "-client", "a", file, "GET", "http://a/"}, io.Discard, io.Discard), "want an IP address")
}

// hash returns the bcrypt hash of a password.
func hash(t *testing.T, password string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	return string(h)
}

func TestBasicAuth(t *testing.T) {
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header["X-User"], "+"))
	})
	dir := t.TempDir()
	users := filepath.Join(dir, "users")
	require.NoError(t, os.WriteFile(users, []byte("# of the shop\nemma:"+hash(t, "secret")+"\n\njane:"+hash(t, "other")+"\n"), 0o600))
	p := startFile(t, writeIn(t, dir, strings.Replace(head, `format: "off"`, "format: json", 1)+"services:\n"+service("a", seen)+`
routes:
- name: inline
  matches: [{path: {prefix: /inline}}]
  basicAuth: {users: ["emma:`+hash(t, "inline")+`"], realm: shop}
  cors: {allowOrigins: ["https://shop.example"]}
  backendRefs: [{name: a}]
- {name: file, basicAuth: {usersFile: users, forwardUsernameHeader: X-User}, backendRefs: [{name: a}]}
`))
	send := func(path, name, password string, fields ...string) answer {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+p.addresses["http"]+path, http.NoBody)
		require.NoError(t, err)
		if name != "" {
			req.SetBasicAuth(name, password)
		}
		fields = append(fields, "Authorization: "+req.Header.Get("Authorization"))
		return p.get(t, "GET", path, fields...)
	}
	for range 2 { // the second time from memory
		for _, name := range []string{"emma", "jane"} {
			password := map[string]string{"emma": "secret", "jane": "other"}[name]
			a := send("/", name, password, "X-User: admin", "X_user: admin")
			assert.Equal(t, []any{200, name}, []any{a.StatusCode, a.body})
		}
		for _, wrong := range [][2]string{{"emma", "other"}, {"jane", "secret"}, {"emma", ""}, {"", ""}, {"none", "secret"}, {"emma", "secret "}} {
			a := send("/", wrong[0], wrong[1])
			assert.Equal(t, []any{401, `Basic realm="gateway", charset="UTF-8"`}, []any{a.StatusCode, a.Header.Get("WWW-Authenticate")}, wrong)
		}
	}
	a := send("/inline", "", "", "Origin: https://shop.example")
	assert.Equal(t, []any{401, `Basic realm="shop", charset="UTF-8"`}, []any{a.StatusCode, a.Header.Get("WWW-Authenticate")})
	assert.Equal(t, "https://shop.example", a.Header.Get("Access-Control-Allow-Origin"), "a page can read the error")
	assert.Equal(t, http.StatusOK, send("/inline", "emma", "inline").StatusCode)
	until(t, func() bool { return strings.Contains(p.log.String(), "basicAuth: wrong name or password") })

	// A change of the file of users is loaded.
	require.NoError(t, os.WriteFile(users, []byte("emma:"+hash(t, "new")), 0o600))
	until(t, func() bool { return send("/", "emma", "new").StatusCode == http.StatusOK })
	assert.Equal(t, http.StatusUnauthorized, send("/", "emma", "secret").StatusCode)
}

// issuer signs tokens with a key.
type issuer struct {
	key  *ecdsa.PrivateKey
	id   string
	keys jose.JSONWebKeySet
}

func newIssuer(t *testing.T, id string) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &issuer{key, id, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"}}}}
}

func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key}, (&jose.SignerOptions{}).WithHeader("kid", i.id))
	require.NoError(t, err)
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	require.NoError(t, err)
	return "Authorization: Bearer " + text
}

func TestJWT(t *testing.T) {
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header["X-Subject"], "+")+" "+r.Header.Get("X-Roles")+" "+r.Header.Get("X-Level"))
	})
	own, other := newIssuer(t, "a"), newIssuer(t, "a")
	dir := t.TempDir()
	text, err := json.Marshal(own.keys)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "keys.json"), text, 0o600))
	p := startFile(t, writeIn(t, dir, head+"services:\n"+service("a", seen)+`
routes:
- name: all
  backendRefs: [{name: a}]
  jwt:
    localJWKS: keys.json
    issuer: https://login.example
    audiences: [shop, carts]
    clockSkew: 10s
    claimToHeaders: [{claim: sub, header: X-Subject}, {claim: realm.roles, header: X-Roles}, {claim: level, header: X-Level}]
`))
	now := time.Now()
	claims := func(change ...any) map[string]any {
		c := map[string]any{
			"iss": "https://login.example", "aud": []string{"carts"}, "exp": now.Add(time.Hour).Unix(), "sub": "emma",
			"realm": map[string]any{"roles": []string{"reader", "buyer"}}, "level": 7,
		}
		for i := 0; i < len(change); i += 2 {
			c[change[i].(string)] = change[i+1]
		}
		return c
	}
	a := p.get(t, "GET", "/", own.token(t, claims()), "X-Subject: admin", "X_Subject: admin")
	assert.Equal(t, "emma reader,buyer 7", a.body)
	assert.Equal(t, " reader,buyer 7", p.get(t, "GET", "/", own.token(t, claims("sub", "")), "X-Subject: admin").body)
	secret, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: text[:64]}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	require.NoError(t, err)
	confused, err := jwt.Signed(secret).Claims(claims()).Serialize()
	require.NoError(t, err)
	for name, field := range map[string]string{
		"issuer": own.token(t, claims("iss", "https://evil.example")), "audience": own.token(t, claims("aud", "other")),
		"expired": own.token(t, claims("exp", now.Add(-time.Minute).Unix())), "early": own.token(t, claims("nbf", now.Add(time.Hour).Unix())),
		"key": other.token(t, claims()), "algorithm": "Authorization: Bearer " + confused,
		"unsigned": "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "text": "Authorization: Bearer a", "claim": own.token(t, claims("sub", "a\r\nb")),
	} {
		a := p.get(t, "GET", "/", field)
		assert.Equal(t, []any{401, `Bearer error="invalid_token"`}, []any{a.StatusCode, a.Header.Get("WWW-Authenticate")}, name)
	}
	a = p.get(t, "GET", "/", "Authorization: Basic YTpi")
	assert.Equal(t, []any{401, "Bearer"}, []any{a.StatusCode, a.Header.Get("WWW-Authenticate")})
}

// Keys are fetched when they are needed. A new key of the issuer is found, and its server may fail.
func TestRemoteKeys(t *testing.T) {
	first, second := newIssuer(t, "first"), newIssuer(t, "second")
	var keys atomic.Pointer[jose.JSONWebKeySet]
	var fetched atomic.Int64
	login := serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		if set := keys.Load(); set != nil {
			_ = json.NewEncoder(w).Encode(set)
		} else {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	text := func(age string) string {
		return head + `
routes: [{name: all, directResponse: {status: 200}, jwt: {remoteJWKS: {uri: "http://` + login + `/keys", cacheDuration: ` + age + `}}}]
`
	}
	p := start(t, text("1h"))
	claims := map[string]any{"sub": "emma"}
	require.Equal(t, http.StatusServiceUnavailable, p.get(t, "GET", "/", first.token(t, claims)).StatusCode)
	assert.Equal(t, http.StatusServiceUnavailable, p.get(t, "GET", "/", first.token(t, claims)).StatusCode)
	assert.Equal(t, http.StatusUnauthorized, p.get(t, "GET", "/").StatusCode, "no keys are needed")
	until(t, func() bool { return strings.Contains(p.log.String(), "keys of tokens not fetched") })

	keys.Store(&first.keys)
	p = start(t, text("1ms")) // always fetches again
	require.Equal(t, http.StatusOK, p.get(t, "GET", "/", first.token(t, claims)).StatusCode)
	assert.Equal(t, http.StatusUnauthorized, p.get(t, "GET", "/", second.token(t, claims)).StatusCode)
	keys.Store(&second.keys)
	until(t, func() bool { return p.get(t, "GET", "/", second.token(t, claims)).StatusCode == http.StatusOK })
	keys.Store(nil)
	before := fetched.Load()
	until(t, func() bool {
		assert.Equal(t, http.StatusOK, p.get(t, "GET", "/", second.token(t, claims)).StatusCode, "the last keys stay")
		return fetched.Load() > before
	})
}

// A body above the limit is 413, with and without a length. A gRPC client gets RESOURCE_EXHAUSTED.
func TestMaxRequestBody(t *testing.T) {
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", maxRequestBodyBytes: 1000}]`, 1)+"services:\n"+service("a", backend(t, "a"))+service("grpc", newHealthServer(t))+`
routes:
- {name: grpc, matches: [{grpc: {service: grpc.health.v1.Health}}], backendRefs: [{name: grpc}]}
- {name: small, matches: [{path: {prefix: /small}}], maxRequestBodyBytes: 3, backendRefs: [{name: a}], retry: {nonIdempotent: true}}
- {name: all, backendRefs: [{name: a}]}
`)
	for _, c := range []struct {
		path string
		size int
		want int
	}{{"/small", 3, 200}, {"/small", 4, 413}, {"/", 1000, 200}, {"/", 1001, 413}} {
		body := strings.Repeat("x", c.size)
		a, err := p.send(t.Context(), "POST", "http://"+p.addresses["http"]+c.path, body)
		require.NoError(t, err)
		assert.Equal(t, c.want, a.StatusCode)
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.addresses["http"]+c.path, struct{ io.Reader }{strings.NewReader(body)})
		require.NoError(t, err)
		rsp, err := p.client.Do(req)
		require.NoError(t, err)
		rsp.Body.Close()
		assert.Equal(t, c.want, rsp.StatusCode, "chunked")
	}
	conn, err := grpc.NewClient(p.addresses["http"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 2000)})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}
