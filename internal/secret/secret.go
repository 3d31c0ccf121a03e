// Package secret detects the names of header fields and query parameters that may carry
// credentials, and removes credentials from text.
package secret

import (
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// Withheld is the text that replaces a value that may be a credential.
const Withheld = "[redacted]"

// Field reports whether a header field, trailer or query parameter with the given name may be a
// credential. It compares the words in the name, as in X-Api-Key, x_auth_token and phpSessionID.
// Words begin at each character that is neither a letter nor a digit, and at changes from lower
// to upper case. A name whose last word describes the credential, as in token-type, is not a
// secret.
//
// You should pass the spelling that was received: in lower case, xOtp is a single word.
func Field(name string) bool {
	lower := strings.ToLower(name)
	if harmless(lower) {
		return false
	}
	// gRPC metadata with binary values ends in -bin.
	words := split(strings.TrimSuffix(lower, "-bin"), name)
	if len(words) == 0 || descriptions[words[len(words)-1]] {
		return false
	}
	for i, word := range words {
		switch {
		// A key is a secret, unless the word before it says that it is public, as in public-key.
		case word == "key":
			if i == 0 || !publicKeys[words[i-1]] {
				return true
			}
		case credentials[word], i == len(words)-1 && lastWords[word]:
			return true
		}
	}
	// In a name without separators, such as phpsessionid, no word stands alone.
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(lower, part) })
}

// split returns the words in lower, a name in lower case, and those that begin where the case
// changes in the name as it was received. Digits at the end of a word, a plural s, and the x in
// names such as XAuth are removed.
func split(lower, received string) []string {
	words := strings.FieldsFunc(lower, isSeparator)
	if lower != received {
		words = append(words, camelWords(received)...)
	}
	for i, word := range words {
		word = strings.TrimRight(word, "0123456789")
		if !strings.HasSuffix(word, "ss") {
			word = strings.TrimSuffix(word, "s")
		}
		if len(word) > len("xi") {
			word = strings.TrimPrefix(word, "x")
		}
		words[i] = word
	}
	return words
}

// isSeparator reports whether r separates words in a name.
func isSeparator(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// camelWords splits name at separators, and before each upper-case letter that follows or
// precedes a lower-case one: xAuthToken is two words and APIKey three. The words are in lower
// case.
func camelWords(name string) []string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.FieldsFunc(b.String(), isSeparator)
}

// harmless reports whether name belongs to a family of fields whose values are flags, numbers or
// lists of names. Such a value is no secret, even if the name contains a word for a credential, as
// Access-Control-Allow-Credentials does.
func harmless(name string) bool {
	return strings.HasPrefix(name, "access-control-") || strings.HasPrefix(name, "x-ratelimit-")
}

// set returns a set of the given words.
func set(words ...string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, word := range words {
		set[word] = true
	}
	return set
}

//nolint:gochecknoglobals // tables
var (
	// credentials holds the words that make a name a secret.
	credentials = set("auth", "oauth", "authentication", "bearer", "dpop", "hmac", "sig", "sid", "otp", "totp", "hotp",
		"pin", "mfa", "2fa", "pwd", "psk", "saml", "assertion", "jws", "jwe")

	// lastWords make a name a secret only at its end, because X-Pass-Through and
	// Private-Network are none.
	lastWords = set("pass", "private")

	// parts are long enough to be looked for inside of words, as in phpsessionid and apikey.
	parts = []string{"authorization", "cookie", "token", "secret", "password", "passwd", "passphrase", "passcode",
		"credential", "session", "sessid", "signature", "jwt", "csrf", "xsrf", "apikey", "accesskey", "authkey",
		"privatekey", "sharedkey", "signingkey", "masterkey", "licensekey"}

	// publicKeys are the words before "key" in names of fields without a secret.
	publicKeys = set("public", "websocket", "socket", "surrogate", "cache", "partition", "routing")

	// descriptions are the last words in the names of fields that describe a credential.
	descriptions = set("mode", "type", "method", "scheme", "version", "algorithm", "alg", "statu", "user", "username",
		"userid", "email", "name", "role", "group", "realm", "provider", "required", "policy", "consent", "result",
		"info", "agent", "input", "expire", "expiry", "timeout", "age", "count", "limit", "length")
)

// Pairs returns text without user information in URIs, and with the value replaced in each pair
// name=value for which hides returns true. Pairs are looked for in the queries and fragments of
// URIs, and as parameters, as in a Link or Baggage field.
func Pairs(text string, hides func(name string) bool) string {
	text = WithoutUserInfo(text)
	if !strings.Contains(text, "=") {
		return text
	}
	var b strings.Builder
	for {
		equals := strings.IndexByte(text, '=')
		if equals < 0 {
			b.WriteString(text)
			return b.String()
		}
		begin := strings.LastIndexAny(text[:equals], "?&#;, \t<>\"'(){}[]/=") + 1
		// An encoded name, such as %61uth, must be decoded before it is compared.
		name, err := url.QueryUnescape(text[begin:equals])
		b.WriteString(text[:equals+1])
		inURI := begin > 0 && strings.IndexByte("?&#", text[begin-1]) >= 0
		text = text[equals+1:]
		// A name that cannot be decoded may hide anything, so its value is removed too.
		if begin == equals || err == nil && !hides(name) {
			continue
		}
		b.WriteString(Withheld)
		text = text[valueEnd(text, inURI):]
	}
}

// valueEnd returns the length of the value at the start of text. In a URI, a value may contain
// commas and semicolons. A quoted one ends with its quote.
func valueEnd(text string, inURI bool) int {
	// ends are the bytes that cannot be part of the value.
	ends := "&;, \t<>\"'"
	switch {
	case inURI:
		ends = "?&# \t<>\"'"
	case strings.HasPrefix(text, `"`):
		if n := strings.IndexByte(text[1:], '"'); n >= 0 {
			return n + len(`""`)
		}
		return len(text)
	}
	if n := strings.IndexAny(text, ends); n >= 0 {
		return n
	}
	return len(text)
}

// WithoutUserInfo returns text without the user information of its URIs, and without the "@"
// that follows.
func WithoutUserInfo(text string) string {
	for start := 0; ; {
		i := strings.Index(text[start:], "//")
		if i < 0 {
			return text
		}
		start += i
		// An authority follows "//" only at the start or after one of these bytes; elsewhere "//" is part of a path.
		begins := start == 0 || strings.IndexByte(":<\"'=,; \t", text[start-1]) >= 0
		start += len("//")
		if !begins { // for a path with an empty segment
			continue
		}
		// A space or comma does not end it, because passwords may contain them, and too much may be removed.
		end := strings.IndexAny(text[start:], "/?#<>\"")
		if end < 0 {
			end = len(text) - start
		}
		if sign := strings.LastIndexByte(text[start:start+end], '@'); sign >= 0 {
			text = text[:start] + text[start+sign+1:]
		}
	}
}
