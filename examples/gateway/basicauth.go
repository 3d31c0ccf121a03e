package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// basicAuth returns a layer that requires a user's name and password, or nil if b is nil.
func basicAuth(b *config.BasicAuth) httplayer.Layer {
	if b == nil {
		return nil
	}
	passwords := &passwords{hashes: b.Hashes(), digests: make(map[[sha256.Size]byte]struct{})}
	_, _ = rand.Read(passwords.salt[:]) // never fails
	// Any hash will do. They all take about the same time to compare.
	for _, hash := range passwords.hashes {
		passwords.decoy = hash
	}
	// All rejected requests share the header.
	challenge := http.Header{"Www-Authenticate": {`Basic realm="` + b.Realm + `", charset="UTF-8"`}}
	return func(next httplayer.Service) httplayer.Service {
		return &basicAuthService{Service: next, passwords: passwords, challenge: challenge, header: string(b.ForwardUsernameHeader)}
	}
}

// basicAuthService passes on requests with the name and password of a user. It is what [basicAuth] adds to a
// service.
type basicAuthService struct {
	httplayer.Service

	passwords *passwords
	challenge http.Header
	header    string // header field that tells services the name; "" for none
}

// Call sends req with the user's name in the configured header field, or fails with status 401.
func (s *basicAuthService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// ok is also false for a header that is not valid.
	name, password, ok := req.BasicAuth()
	if !ok || !s.passwords.match(name, password) {
		reason := "basicAuth: no password"
		if ok {
			reason = "basicAuth: wrong name or password"
		}
		return nil, &httplayer.StatusError{Code: http.StatusUnauthorized, Reason: reason, Header: s.challenge}
	}
	if s.header != "" {
		// EditRequest replaces a field that the client may have forged.
		req = httplayer.HTTP{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: s.header, Value: name}}})
	}
	return s.Service.Call(ctx, req)
}

// maxDigests limits how many correct passwords are remembered. When there are more, all of them are
// forgotten, and the next request of each user is checked against the hash again.
const maxDigests = 10_000

// passwords checks users' passwords against bcrypt hashes. A comparison costs about 50 ms of CPU,
// which is too much for each request. Correct passwords are therefore remembered, as salted
// digests that are useless elsewhere.
type passwords struct {
	hashes map[string][]byte // by name
	decoy  []byte            // compared for unknown names, so that they take as long as known ones
	salt   [32]byte

	mu      sync.RWMutex
	digests map[[sha256.Size]byte]struct{}
}

// match reports whether password is that of the user name.
func (p *passwords) match(name, password string) bool {
	text := append(make([]byte, 0, 128), p.salt[:]...)
	// The zero byte separates the name from the password.
	text = append(append(append(text, name...), 0), password...)
	digest := sha256.Sum256(text)
	p.mu.RLock()
	_, cached := p.digests[digest]
	p.mu.RUnlock()
	if cached {
		return true
	}
	// Compare even if the name does not exist. Otherwise the time would reveal which names do.
	hash, exists := p.hashes[name]
	if !exists {
		hash = p.decoy
	}
	// The name must exist, even if the password is that of the decoy.
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !exists {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.digests) >= maxDigests {
		clear(p.digests)
	}
	p.digests[digest] = struct{}{}
	return true
}
