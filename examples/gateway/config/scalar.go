package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/layer/httplayer"
)

// Name is the name of a listener, service or route: a lower-case DNS name.
type Name string

// parse implements [scalar]. 253 characters is DNS's limit for a name.
func (v *Name) parse(text string) error {
	valid := len(text) <= 253
	for label := range strings.SplitSeq(text, ".") {
		valid = valid && isLabel(label)
	}
	if !valid {
		return errors.New("lower-case letters, digits, '-' and '.', such as books-v1")
	}
	*v = Name(text)
	return nil
}

// isLabel reports whether text is a label of a DNS name in lower case: up to 63 letters, digits and
// '-', which must not be the first or last character.
func isLabel(text string) bool {
	// 63 characters is DNS's limit for a label.
	if text == "" || len(text) > 63 || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	})
}

// Duration is a time that is not negative, written as 300ms, 10s or 1m30s.
type Duration time.Duration

// parse implements [scalar]. It rejects durations below 0.
func (v *Duration) parse(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("a duration such as 300ms, 10s or 1m30s")
	}
	*v = Duration(d)
	return nil
}

// D returns v as a time.Duration.
func (v Duration) D() time.Duration { return time.Duration(v) }

// Address is an address to listen on: an IP address or localhost, with a port. ":8080" means port
// 8080 on all interfaces.
type Address string

// parse implements [scalar]. All errors are collected before, because each of them has the same message.
func (v *Address) parse(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	_, ipErr := netip.ParseAddr(host)
	// An empty host means all interfaces.
	if err != nil || portErr != nil || n > 65535 || host != "" && host != "localhost" && ipErr != nil {
		return errors.New("an IP address with a port, such as 127.0.0.1:8080, or :8080")
	}
	*v = Address(text)
	return nil
}

// HostPort is a DNS name or an IP address, with a port above 0.
type HostPort string

// parse implements [scalar]. The host is a domain name or an IP address, and the port is not 0.
func (v *HostPort) parse(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	_, ipErr := netip.ParseAddr(host)
	if err != nil || portErr != nil || n == 0 || ipErr != nil && !isDomain(host) {
		return errors.New("a host with a port, such as books.example:80 or 10.0.0.1:80")
	}
	*v = HostPort(text)
	return nil
}

// EndpointAddress is an IP address with a port above 0, or "unix:" and a socket's absolute path.
type EndpointAddress string

// parse implements [scalar]. Which of the two forms is checked depends on the prefix "unix:".
func (v *EndpointAddress) parse(text string) error {
	addr, err := netip.ParseAddrPort(text)
	path, socket := strings.CutPrefix(text, "unix:")
	if socket && !filepath.IsAbs(path) || !socket && (err != nil || addr.Port() == 0) {
		return errors.New("an IP address with a port, such as 10.0.0.1:80, or a socket such as unix:/run/app.sock; use dns for names")
	}
	*v = EndpointAddress(text)
	return nil
}

// Socket returns the path of a Unix socket, and false for an IP address.
func (v EndpointAddress) Socket() (path string, ok bool) {
	return strings.CutPrefix(string(v), "unix:")
}

// isDomain reports whether text is a DNS name. Its labels may contain letters, digits, '-' and
// '_'.
func isDomain(text string) bool {
	if len(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.ToLower(strings.TrimSuffix(text, ".")), ".") {
		if !isLabel(strings.ReplaceAll(label, "_", "x")) { // isLabel does not allow '_'
			return false
		}
	}
	return true
}

// Hostname is a DNS name without a port. In a condition, such as a route's hostnames, the first
// label may be "*", which matches one or more labels.
type Hostname string

// parse implements [scalar]. The name is stored in lower case without a final dot, as hosts are compared.
func (v *Hostname) parse(text string) error {
	// An IP address would look like a DNS name.
	_, err := netip.ParseAddr(text)
	if err == nil || !isDomain(strings.TrimPrefix(text, "*.")) {
		return errors.New("a DNS name without a port, such as books.example or *.books.example")
	}
	*v = Hostname(strings.ToLower(strings.TrimSuffix(text, ".")))
	return nil
}

// Prefix is a range of IP addresses such as "10.0.0.0/8", or a single address.
type Prefix struct{ netip.Prefix }

// parse implements [scalar]. An address becomes a range that only contains itself.
func (v *Prefix) parse(text string) error {
	if addr, err := netip.ParseAddr(text); err == nil {
		v.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("a range of IP addresses such as 10.0.0.0/8")
	}
	// Bits after the prefix are ignored, as most programs do.
	v.Prefix = p.Masked()
	return nil
}

// HeaderName is a valid header field name.
type HeaderName string

// parse implements [scalar]. It permits the names that HTTP does. The case does not matter.
func (v *HeaderName) parse(text string) error {
	if !httpguts.ValidHeaderFieldName(text) {
		return errors.New("the name of a header field, such as X-User")
	}
	*v = HeaderName(text)
	return nil
}

// HeaderValue is a header field value without control characters.
type HeaderValue string

// parse implements [scalar]. It permits the values that HTTP does.
func (v *HeaderValue) parse(text string) error {
	if !httpguts.ValidHeaderFieldValue(text) {
		return errors.New("a header value without control characters")
	}
	*v = HeaderValue(text)
	return nil
}

// Method is an HTTP method in upper case.
type Method string

// parse implements [scalar]. Methods are tokens, and so are names of header fields.
func (v *Method) parse(text string) error {
	if !httpguts.ValidHeaderFieldName(text) || text != strings.ToUpper(text) {
		return errors.New("an HTTP method in upper case, such as GET")
	}
	*v = Method(text)
	return nil
}

// Text is a string that may be empty, unlike a field of type string.
type Text string

func (v *Text) parse(text string) error {
	*v = Text(text)
	return nil
}

// Path is a percent-encoded path that begins with "/", without a query.
type Path string

// parse implements [scalar]. The path is stored in its normal form, because requests' paths are compared in that
// form.
func (v *Path) parse(text string) error {
	if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, "?#") || !isPath(text) {
		return errors.New("a path that begins with /, without a query, percent-encoded")
	}
	normal, err := everyPath.Normalize(text)
	if err != nil {
		return errors.New("a path that all services read in the same way")
	}
	*v = Path(normal)
	return nil
}

// everyPath normalizes paths in the configuration to the form that routes compare. It allows
// every character that a listener might allow.
var everyPath = httplayer.PathPolicy{KeepSlashes: true, Allow: []string{"%2F", "%5C", "%3B", "%00", `\`}} //nolint:gochecknoglobals,lll // constant

func isPath(text string) bool {
	u, err := url.ParseRequestURI(text)
	return err == nil && u.EscapedPath() == text
}

// Pattern is a path with placeholders for whole segments: "/books/{id}/pages/{page}".
type Pattern string

// placeholder matches a whole segment such as {id}.
var placeholder = regexp.MustCompile(`^\{[A-Za-z_][A-Za-z0-9_]*\}$`)

// parse implements [scalar]. Each segment of the path is a placeholder or a text, but no mixture of both.
func (v *Pattern) parse(text string) error {
	if !strings.HasPrefix(text, "/") {
		return errors.New("a path with placeholders, such as /books/{id}")
	}
	// Skip the first slash, before which there is no segment.
	for segment := range strings.SplitSeq(text[1:], "/") {
		if !placeholder.MatchString(segment) && !isPath("/"+segment) {
			return errors.New("a path with placeholders for whole segments, such as /books/{id}")
		}
	}
	*v = Pattern(text)
	return nil
}

// Regexp returns a regular expression for the paths that v matches. A placeholder such as {id}
// matches one segment that is not empty.
func (v Pattern) Regexp() string {
	var b strings.Builder
	for segment := range strings.SplitSeq(string(v)[1:], "/") {
		b.WriteByte('/')
		// A placeholder ends at the next slash.
		if placeholder.MatchString(segment) {
			b.WriteString("[^/]+")
		} else {
			b.WriteString(regexp.QuoteMeta(segment))
		}
	}
	return b.String()
}

// Regex is a regular expression in Go syntax. It must match the whole value.
type Regex string

// parse implements [scalar]. It accepts the syntax of package regexp.
func (v *Regex) parse(text string) error {
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		return fmt.Errorf("a regular expression of Go: %w", err)
	}
	*v = Regex(text)
	return nil
}

// Status is the HTTP status of a final response, from 200 to 599.
type Status int

// parse implements [scalar]. It rejects 1xx, which cannot be the final status.
func (v *Status) parse(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 200 || n > 599 {
		return errors.New("an HTTP status from 200 to 599")
	}
	*v = Status(n)
	return nil
}

// Origin is a browser origin such as "https://books.example", or "*" for any. The host may begin
// with "*.", where "*" matches one or more labels.
type Origin string

// parse implements [scalar]. The origin is stored in lower case.
func (v *Origin) parse(text string) error {
	// A wildcard is no valid host, so the URL is parsed without it.
	u, err := url.Parse(strings.Replace(text, "://*.", "://", 1))
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Path == "" && u.RawQuery == "" && u.User == nil
	if text != "*" && !ok {
		return errors.New(`an origin such as https://books.example or https://*.example, or "*"`)
	}
	*v = Origin(strings.ToLower(text))
	return nil
}

// Matches reports whether v allows a page from the given origin.
func (v Origin) Matches(origin string) bool {
	origin = strings.ToLower(origin)
	scheme, suffix, wild := strings.Cut(string(v), "*")
	if !wild {
		return origin == string(v)
	}
	// The first condition prevents that the scheme and the suffix overlap.
	return len(origin) >= len(v) && strings.HasPrefix(origin, scheme) && strings.HasSuffix(origin, suffix)
}

// URL is an absolute URL with the scheme http or https.
type URL string

// parse implements [scalar]. The URL must be absolute, and is stored as it is written.
func (v *URL) parse(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("a URL with the scheme http or https, such as https://books.example/path")
	}
	*v = URL(text)
	return nil
}

// File is a file's path and content. Relative paths start at the configuration's folder. The file
// is read together with the configuration, and the gateway reloads when its content changes.
type File struct {
	Path string
	Data []byte
}

// parse only stores the path. The file is read later, when its base folder is known.
func (v *File) parse(text string) error {
	if text == "" {
		return errors.New("the path of a file")
	}
	v.Path = text
	return nil
}

// decodeFile reads the file whose path is v into f.
func (s *source) decodeFile(d *yamlfile.Decoder, v yamlfile.Value, f *File) {
	// Without a path, there is nothing to read.
	mistakes := len(v.Mistakes)
	d.Scalar(v, f.parse)
	if len(v.Mistakes) > mistakes {
		return
	}
	f.Path = s.resolve(f.Path)
	data, err := s.read(f.Path)
	if err != nil {
		v.Failf("want a file that can be read: %v", err)
		return
	}
	f.Data = data
}

// MarshalJSON returns the path and a digest of the content. Versions of listeners and services
// are digests of their JSON, so this makes them change with the file.
func (v File) MarshalJSON() ([]byte, error) {
	sum := sha256.Sum256(v.Data)
	return json.Marshal([]string{v.Path, hex.EncodeToString(sum[:])})
}
