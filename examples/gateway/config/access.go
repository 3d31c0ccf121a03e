package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/crypto/bcrypt"
)

// Access restricts who may send requests, and how large they may be. A listener's rules apply
// before routes are compared, even to browsers' preflight requests.
type Access struct {
	// Client addresses to accept. Other clients get the status 403. Behind a proxy in
	// trustedProxies, the client is the last address in X-Forwarded-For that is not trusted.
	ClientCIDRs *ClientCIDRs `yaml:"clientCIDRs"`
	// Requires a name and a password (RFC 7617). Requests without them get the status 401.
	BasicAuth *BasicAuth `yaml:"basicAuth"`
	// Requires a JSON Web Token, sent as Authorization: Bearer. Requests without a valid one get
	// the status 401.
	JWT *JWT `yaml:"jwt"`
	// Maximum size of a request body in bytes. Larger ones get the status 413. 0 means no limit.
	MaxRequestBodyBytes int `yaml:"maxRequestBodyBytes" min:"0" max:"1000000000000"`
}

// ClientCIDRs are ranges of client addresses. At least one must be set.
type ClientCIDRs struct {
	// The only addresses to accept. The default is all addresses.
	Allow []Prefix `yaml:"allow"`
	// Addresses to reject, even if they are in allow.
	Deny []Prefix `yaml:"deny"`
}

// check reports a list without addresses, which would have no effect.
func (c *ClientCIDRs) check(n node) {
	if len(c.Allow)+len(c.Deny) == 0 {
		n.failf("want at least one address in allow or deny")
	}
}

// BasicAuth lists users and their passwords (RFC 7617). Use it only with TLS, because passwords
// are sent in the clear.
type BasicAuth struct {
	// A file with one line per user, as htpasswd -B writes it: the name, a colon, and the
	// password's bcrypt hash.
	UsersFile *File `yaml:"usersFile"`
	// The same lines as a list.
	Users []string `yaml:"users"`
	// The name that browsers show when they ask for a password.
	Realm string `yaml:"realm" default:"gateway"`
	// A header field that tells services the user's name. Clients cannot set it themselves.
	// Absent means none.
	ForwardUsernameHeader HeaderName `yaml:"forwardUsernameHeader"`

	hashes map[string][]byte
}

func (b *BasicAuth) oneOf() []string { return []string{"usersFile", "users"} }

// hashes are only stored here, because a file with a mistake is not used.
func (b *BasicAuth) check(n node) {
	// The error below is only useful if the lines themselves are valid.
	mistakes := len(n.Mistakes)
	b.hashes = make(map[string][]byte)
	if strings.ContainsAny(b.Realm, "\"\\\r\n") {
		n.at("realm").failf(`want a text without " and \`)
	}
	for i, line := range b.Users {
		if !b.add(line) {
			// The value is hidden, because it may contain a password.
			n.at("users").item(i).hidden().failf("want NAME:HASH with a bcrypt hash, as htpasswd -nB NAME prints it")
		}
	}
	if b.UsersFile != nil {
		number := 0
		// The file's lines have no nodes, so errors count them.
		for line := range bytes.Lines(b.UsersFile.Data) {
			number++
			text := strings.TrimSpace(string(line))
			if text != "" && !strings.HasPrefix(text, "#") && !b.add(text) {
				n.at("usersFile").failf("line %d: want NAME:HASH with a bcrypt hash, as htpasswd -nB NAME prints it", number)
			}
		}
	}
	if len(b.hashes) == 0 && len(n.Mistakes) == mistakes {
		n.failf("want at least one user")
	}
}

// add stores the user in line, NAME:HASH, and returns false if the line is invalid.
func (b *BasicAuth) add(line string) bool {
	name, hash, _ := strings.Cut(line, ":")
	// Cost fails for a text that is no bcrypt hash.
	_, err := bcrypt.Cost([]byte(hash))
	if name == "" || err != nil {
		return false
	}
	b.hashes[name] = []byte(hash)
	return true
}

// Hashes returns each user's password as a bcrypt hash.
func (b *BasicAuth) Hashes() map[string][]byte { return b.hashes }

// JWT says which JSON Web Tokens to accept. One of the keys must have signed the token, and the
// current time must agree with its claims exp, nbf and iat.
type JWT struct {
	// A file with a JSON Web Key Set.
	LocalJWKS *File `yaml:"localJWKS"`
	// A server that provides the keys.
	RemoteJWKS *RemoteJWKS `yaml:"remoteJWKS"`
	// The issuer that tokens must name (iss). Absent means any.
	Issuer string `yaml:"issuer"`
	// Audiences, one of which tokens must name (aud). Absent means any.
	Audiences []string `yaml:"audiences"`
	// How far the issuer's clock may differ from the gateway's.
	ClockSkew Duration `yaml:"clockSkew" default:"60s"`
	// Header fields that pass claims on to services. Clients cannot set them themselves.
	ClaimToHeaders []ClaimToHeader `yaml:"claimToHeaders"`

	keys *jose.JSONWebKeySet
}

func (j *JWT) oneOf() []string { return []string{"localJWKS", "remoteJWKS"} }

// check parses the keys of a local file.
func (j *JWT) check(n node) {
	// Keys from a server are fetched at run time.
	if j.LocalJWKS == nil {
		return
	}
	keys, err := ParseKeys(j.LocalJWKS.Data)
	if err != nil {
		n.at("localJWKS").failf("want a file with a JSON Web Key Set: %v", err)
	}
	j.keys = keys
}

// ParseKeys parses a JSON Web Key Set. It skips keys whose type is unknown, because a server may
// offer some that this gateway does not need.
func ParseKeys(data []byte) (*jose.JSONWebKeySet, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	set := &jose.JSONWebKeySet{}
	for _, text := range raw.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(text); err != nil {
			continue
		}
		// A symmetric key is the secret itself. Of other keys, only the public half is needed.
		if secret, ok := key.Key.([]byte); ok && len(secret) > 0 {
			set.Keys = append(set.Keys, key)
		} else if public := key.Public(); public.Valid() {
			set.Keys = append(set.Keys, public)
		}
	}
	if len(set.Keys) == 0 {
		return nil, errors.New("no usable key")
	}
	return set, nil
}

// Keys returns the keys in localJWKS, or nil if it is not set.
func (j *JWT) Keys() *jose.JSONWebKeySet { return j.keys }

// RemoteJWKS is a server that provides a JSON Web Key Set. Keys are fetched for the first
// request, again after cacheDuration, and when a token names an unknown key. If the server fails,
// the last keys stay in use.
type RemoteJWKS struct {
	// URL to fetch the keys from.
	URI URL `yaml:"uri" is:"required"`
	// How long keys are used before they are fetched again.
	CacheDuration Duration `yaml:"cacheDuration" default:"5m"`
	// A PEM file with the certificate authorities that the server's certificate may come from.
	// Absent means the system's.
	CACertificates *File `yaml:"caCertificates"`
}

// check reports CA certificates that cannot be parsed.
func (r *RemoteJWKS) check(n node) {
	if r.CACertificates != nil {
		poolOf(n.at("caCertificates"), *r.CACertificates)
	}
}

// ClaimToHeader passes a claim to services in a header field.
type ClaimToHeader struct {
	// Name of the claim. Dots separate the names of nested claims.
	Claim string `yaml:"claim" is:"required"`
	// Name of the header field.
	Header HeaderName `yaml:"header" is:"required"`
}
