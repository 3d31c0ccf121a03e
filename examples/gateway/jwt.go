package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// jwt returns a layer that rejects requests without a valid token, or nil if j is nil.
func (g *gateway) jwt(j *config.JWT) httplayer.Layer {
	if j == nil {
		return nil
	}
	// Keys in the configuration need no server.
	keys := &tokenKeys{set: j.Keys()}
	if j.RemoteJWKS != nil {
		keys = newTokenKeys(j.RemoteJWKS, g.log)
	}
	// Clients must not set the fields in which services expect claims.
	var cleared layer.HeaderMutation
	for _, c := range j.ClaimToHeaders {
		cleared.Remove = append(cleared.Remove, string(c.Header))
	}
	return func(next httplayer.Service) httplayer.Service {
		return &jwtService{Service: next, JWT: j, keys: keys, cleared: cleared}
	}
}

// jwtService is the service of a listener or route that requires a token.
type jwtService struct {
	httplayer.Service
	*config.JWT

	keys    *tokenKeys
	cleared layer.HeaderMutation // removes the claims' header fields
}

// Call sends req with the configured claims in header fields, or fails with status 401.
func (s *jwtService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		// The challenge without an error tells the client to send a token.
		return nil, unauthorized("Bearer", errors.New("no token"))
	}
	// Restricting the algorithms here rejects tokens without a signature.
	parsed, err := jwt.ParseSigned(strings.TrimSpace(token), algorithms())
	if err != nil {
		return nil, unauthorized(invalidToken, err)
	}
	keys, err := s.keys.get(ctx, parsed.Headers[0].KeyID)
	switch {
	case err != nil && ctx.Err() != nil: // for example, the client has left
		return nil, err
	case err != nil:
		return nil, &httplayer.StatusError{Code: http.StatusServiceUnavailable, Reason: "jwt: " + err.Error()}
	}
	claims, err := s.claims(parsed, keys)
	if err != nil {
		return nil, unauthorized(invalidToken, err)
	}
	// Without claims in header fields, the request need not be copied.
	if len(s.ClaimToHeaders) > 0 {
		req = httplayer.HTTP{}.EditRequest(req, s.cleared)
		var fields layer.HeaderMutation
		for _, c := range s.ClaimToHeaders {
			if text := claimText(claims, c.Claim); text != "" {
				fields.Set = append(fields.Set, layer.HeaderField{Name: string(c.Header), Value: text})
			}
		}
		// A claim may contain line breaks, with which a user could add header fields.
		if fields.Validate() != nil {
			return nil, unauthorized(invalidToken, errors.New("a claim is not a header value"))
		}
		req = httplayer.HTTP{}.EditRequest(req, fields)
	}
	return s.Service.Call(ctx, req)
}

// unauthorized returns an error with status 401. challenge is the value of WWW-Authenticate.
func unauthorized(challenge string, err error) error {
	return &httplayer.StatusError{
		Code: http.StatusUnauthorized, Reason: "jwt: " + err.Error(), Header: http.Header{"Www-Authenticate": {challenge}},
	}
}

// invalidToken tells the client that it has sent a token, but not a valid one.
const invalidToken = `Bearer error="invalid_token"` //nolint:gosec // not a credential

// algorithms returns the accepted signature algorithms. Each type of key works only with its own
// algorithms, so a public key cannot be abused as an HMAC secret.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
		jose.HS256, jose.HS384, jose.HS512,
	}
}

// claims returns the token's claims, if one of the keys has signed it and the claims are valid.
func (s *jwtService) claims(token *jwt.JSONWebToken, set *jose.JSONWebKeySet) (map[string]any, error) {
	keys := set.Keys
	// Without an ID, any key may have signed the token.
	if id := token.Headers[0].KeyID; id != "" {
		keys = set.Key(id)
	}
	err := errors.New("no key for the token")
	// The first key with a valid signature decides. Claims that are expired under it are an error.
	for _, key := range keys {
		var registered jwt.Claims
		var all map[string]any
		if err = token.Claims(key.Key, &registered, &all); err == nil {
			expected := jwt.Expected{Issuer: s.Issuer, AnyAudience: s.Audiences, Time: time.Now()}
			return all, registered.ValidateWithLeeway(expected, s.ClockSkew.D())
		}
	}
	return nil, err
}

// claimText returns a claim as text, or "" if the token lacks it. Lists are joined with commas.
func claimText(claims map[string]any, name string) string {
	var value any = claims
	// A dot in the name leads into a nested object. value becomes nil if there is none.
	for field := range strings.SplitSeq(name, ".") {
		fields, _ := value.(map[string]any)
		value = fields[field]
	}
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		texts := make([]string, 0, len(v))
		for _, item := range v {
			texts = append(texts, fmt.Sprint(item))
		}
		return strings.Join(texts, ",")
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // came from JSON
	return string(text)
}

// tokenKeys are the keys for tokens. They come from a file, or from an HTTP server if RemoteJWKS
// is set. A request waits for the server only if there are no keys yet, or its token names an
// unknown key. If the server fails, the last keys stay in use.
type tokenKeys struct {
	*config.RemoteJWKS

	client *http.Client
	log    *slog.Logger

	mu       sync.Mutex
	set      *jose.JSONWebKeySet // nil before the first success
	err      error               // from the last fetch
	fetched  time.Time           // when the last fetch began
	fetching chan struct{}       // closed when the current fetch ends; nil if there is none
}

// Limits for fetching keys. At most one fetch per refetchInterval is caused by unknown keys,
// because clients can make up as many of these as they like.
const (
	fetchTimeout    = 5 * time.Second
	refetchInterval = 10 * time.Second
	maxKeys         = 1 << 20 // bytes
)

// newTokenKeys returns the keys of the server in r, without fetching them yet.
func newTokenKeys(r *config.RemoteJWKS, log *slog.Logger) *tokenKeys {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	if r.CACertificates != nil {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(r.CACertificates.Data) // was checked with the configuration
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &tokenKeys{RemoteJWKS: r, log: log, client: &http.Client{Transport: transport, Timeout: fetchTimeout}}
}

// get returns the keys. It fetches them first if they are too old, or if they do not include the
// key id, which may be "".
func (r *tokenKeys) get(ctx context.Context, id string) (*jose.JSONWebKeySet, error) {
	if r.RemoteJWKS == nil {
		return r.set, nil
	}
	r.mu.Lock()
	set := r.set
	age := time.Since(r.fetched)
	hasKey := set != nil && (id == "" || len(set.Key(id)) > 0)
	// A key that the set does not contain may be new, but clients can also invent it, so fetches have a minimum
	// interval.
	if r.fetching == nil && (age > r.CacheDuration.D() || !hasKey && age > refetchInterval) {
		r.fetching = make(chan struct{})
		r.fetched = time.Now()
		// Other requests wait for the same fetch, so it must not end with this request's context.
		go r.fetch(context.WithoutCancel(ctx), r.fetching)
	}
	fetching := r.fetching
	r.mu.Unlock()
	// Old keys can still verify a token, so only a request without a key waits.
	if !hasKey && fetching != nil {
		select {
		case <-fetching:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	// The fetch may have failed, and r.set is then still the old one.
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		return nil, fmt.Errorf("no keys: %w", r.err)
	}
	return r.set, nil
}

// fetch replaces the keys. After an error, the old ones stay. It closes done in the end.
func (r *tokenKeys) fetch(ctx context.Context, done chan struct{}) {
	set, err := r.request(ctx)
	if err != nil {
		r.log.Warn("keys of tokens not fetched", "uri", r.URI, "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The next request may start another fetch.
	r.fetching = nil
	r.err = err
	if err == nil {
		r.set = set
	}
	close(done)
}

// request fetches the keys at r.URI once. Any status other than 200 is an error.
func (r *tokenKeys) request(ctx context.Context) (*jose.JSONWebKeySet, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(r.URI), http.NoBody) //nolint:gosec // of the configuration
	if err != nil {
		return nil, err
	}
	rsp, err := r.client.Do(req) //nolint:gosec // of the configuration
	if err != nil {
		return nil, err
	}
	defer rsp.Body.Close()
	if rsp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", rsp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(rsp.Body, maxKeys))
	if err != nil {
		return nil, err
	}
	return config.ParseKeys(data)
}
