package config

import (
	"crypto/tls"
	"crypto/x509"
	"mime"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer/httplayer"
)

// Listener is an address at which clients connect. It serves HTTP/1.1 and HTTP/2, which clients
// choose by prior knowledge in cleartext, or by ALPN with TLS.
type Listener struct {
	// How routes, logs and metrics refer to the listener.
	Name Name `yaml:"name" is:"required"`
	// The address to listen on: an IP address with a port, or :8080 for all interfaces.
	Address Address `yaml:"address" is:"required"`
	// HTTP serves cleartext. HTTPS serves TLS and requires the field tls. TCP forwards
	// connections by tcpRoutes, and uses only proxyProtocol, maxConnections and clientCIDRs.
	Protocol string `yaml:"protocol" default:"HTTP" enum:"HTTP,HTTPS,TCP"`
	// Certificates for the protocol HTTPS.
	TLS *ListenerTLS `yaml:"tls"`
	// Load balancers that begin each connection with a PROXY protocol header, version 1 or 2,
	// which tells the client's address. The header is required from these addresses, and not
	// accepted from others.
	ProxyProtocol []Prefix `yaml:"proxyProtocol" list:"a list with the addresses of load balancers, such as [10.0.0.0/8]"`
	// Proxies in front of the gateway. The X-Forwarded and Forwarded headers that they send are
	// kept and extended; those from other clients are replaced. Their X-Forwarded-Proto is the
	// request's scheme for redirects and cookies.
	TrustedProxies []Prefix `yaml:"trustedProxies"`
	// True forwards request trailers. By default they are removed, because a service may take a
	// trailer for a header field, and the gateway has not checked it.
	KeepRequestTrailers bool `yaml:"keepRequestTrailers"`
	// Which form paths take before routes compare them and services receive them.
	Path ListenerPath `yaml:"path"`
	// Compresses responses with gzip or zstd. Absent means no compression.
	Compression *Compression `yaml:"compression"`
	// Pages for the gateway's own errors, such as a missing route or a service that cannot be
	// reached. Errors without a page get problem details (RFC 9457). Responses from services are
	// never replaced.
	ErrorPages []ErrorPage `yaml:"errorPages"`
	// How long a connection without requests stays open. 0s means no limit.
	IdleTimeout Duration `yaml:"idleTimeout" default:"2m"`
	// How long a client may take to send a request's headers, and for the TLS handshake.
	RequestHeadersTimeout Duration `yaml:"requestHeadersTimeout" default:"60s"`
	// How long a client may pause while it sends a body with a known length, before it gets the
	// status 408. gRPC and bodies without a length may pause as long as they want. 0s means no
	// limit.
	RequestBodyIdleTimeout Duration `yaml:"requestBodyIdleTimeout" default:"60s"`
	// Lowest average rate for a body with a known length, in bytes per second. It is checked once
	// the gateway has waited for the body for longer than requestBodyIdleTimeout in total. Slower
	// clients get the status 408, so that the time for an upload depends on its size. 0 means no
	// limit.
	MinRequestBodyRate int `yaml:"minRequestBodyRate" min:"0" max:"1000000000"`
	// Maximum size of a request's headers in bytes.
	MaxHeaderBytes int `yaml:"maxHeaderBytes" default:"262144" min:"1024" max:"1048576"`
	// Maximum number of open connections. Further connections are reset. 0 means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"10000000"`
	// Maximum number of concurrent requests on an HTTP/2 connection.
	MaxConcurrentStreams int `yaml:"maxConcurrentStreams" default:"100" min:"1" max:"10000"`
	Access

	version string
}

// Version returns a text that changes when the listener's configuration changes.
func (l *Listener) Version() string { return l.version }

// check reports settings that do not fit the protocol.
func (l *Listener) check(n node) {
	// Both directions are checked: TLS without HTTPS would silently serve cleartext.
	switch {
	case l.Protocol == "HTTPS" && l.TLS == nil:
		n.at("tls").failf("missing: protocol HTTPS needs tls with certificates or acme")
	case l.Protocol != "HTTPS" && l.TLS != nil:
		n.at("tls").failf("want protocol: HTTPS beside tls")
	}
	// These rules need a request, which a TCP connection does not have.
	for name, used := range map[string]bool{
		"basicAuth": l.BasicAuth != nil, "jwt": l.JWT != nil, "maxRequestBodyBytes": l.MaxRequestBodyBytes > 0,
	} {
		if used && l.Protocol == "TCP" {
			n.at(name).failf("want protocol HTTP or HTTPS beside %s", name)
		}
	}
	// 0 would mean no limit, and clients could hold connections forever.
	if l.RequestHeadersTimeout == 0 {
		n.at("requestHeadersTimeout").failf("want a duration above 0")
	}
}

// ListenerPath says how paths are normalized. Many services merge slashes, resolve dot segments,
// decode separators or ignore parameters. If routes, or the service behind externalAuth, saw a
// different path than the final service does, clients could get around their rules.
type ListenerPath struct {
	// True normalizes each path: letters, digits, '-', '.', '_' and '~' are decoded, and the
	// segments "." and ".." are removed. A path that services may read in different ways gets the
	// status 400. False compares and forwards paths as they arrive.
	Normalize bool `yaml:"normalize" default:"true"`
	// True merges repeated slashes.
	MergeSlashes bool `yaml:"mergeSlashes" default:"true"`
	// Exceptions for paths that services read in different ways: %2F, %5C, %3B, %00, a backslash,
	// or ; for parameters. Without ; here, a path with parameters gets the status 400 only if it
	// would match another route without them.
	Allow []string `yaml:"allow" enum:"%2F,%5C,%3B,%00,\\,;"`
}

// check reports rules that need a normalized path.
func (p *ListenerPath) check(n node) {
	if !p.Normalize && (!p.MergeSlashes || len(p.Allow) > 0) {
		n.at("normalize").failf("want true beside mergeSlashes and allow")
	}
}

// Policy returns p for package httplayer, which does not treat ";" specially.
func (p *ListenerPath) Policy() httplayer.PathPolicy {
	allow := slices.DeleteFunc(slices.Clone(p.Allow), func(text string) bool { return text == ";" })
	return httplayer.PathPolicy{KeepSlashes: !p.MergeSlashes, Allow: allow}
}

// ListenerTLS configures TLS for clients' connections. Certificates come either from files or
// from an ACME server.
type ListenerTLS struct {
	// Certificates, selected by the server name that the client requests. If none matches, the
	// first one is used.
	Certificates []Certificate `yaml:"certificates"`
	// Obtains and renews certificates from an ACME server.
	ACME *ACME `yaml:"acme"`
	// The lowest accepted TLS version.
	MinVersion string `yaml:"minVersion" default:"1.2" enum:"1.2,1.3"`
	// Requests and verifies client certificates. Absent means that clients need none.
	ClientValidation *ClientValidation `yaml:"clientValidation"`
}

func (t *ListenerTLS) oneOf() []string { return []string{"certificates", "acme"} }

// check reports TLS without any source of certificates.
func (t *ListenerTLS) check(n node) {
	if t.ACME == nil && len(t.Certificates) == 0 {
		n.at("certificates").failf("want at least one certificate")
	}
}

// Certificate is a certificate with its private key, both in PEM files.
type Certificate struct {
	// A file with the certificate, followed by intermediate certificates.
	CertificateChain File `yaml:"certificateChain" is:"required"`
	// A file with the certificate's private key.
	PrivateKey File `yaml:"privateKey" is:"required"`

	pair tls.Certificate
}

// check parses the certificate with its key and keeps both, so that serving needs no second attempt.
func (c *Certificate) check(n node) {
	pair, err := tls.X509KeyPair(c.CertificateChain.Data, c.PrivateKey.Data)
	if err != nil {
		n.at("certificateChain").failf("want a certificate and its private key in PEM: %s", strings.TrimPrefix(err.Error(), "tls: "))
		return
	}
	c.pair = pair
}

// TLS returns the certificate and its key for crypto/tls.
func (c *Certificate) TLS() tls.Certificate { return c.pair }

// ClientValidation says how client certificates are verified.
type ClientValidation struct {
	// A PEM file with the certificate authorities that issue client certificates.
	CACertificates File `yaml:"caCertificates" is:"required"`
	// Require rejects clients without a valid certificate. Optional accepts clients that send
	// none, but still rejects an invalid one.
	Mode string `yaml:"mode" default:"Require" enum:"Require,Optional"`

	// What to tell services about a verified certificate, in the header fields that RFC 9440
	// defines. Certificate sets Client-Cert, and Chain also sets Client-Cert-Chain. These fields
	// are always removed from requests, unless the client is in trustedProxies.
	ForwardCertificate string `yaml:"forwardCertificate" default:"None" enum:"None,Certificate,Chain"`

	pool *x509.CertPool
}

func (c *ClientValidation) check(n node) { c.pool = poolOf(n.at("caCertificates"), c.CACertificates) }

// Pool returns the certificate authorities that issue client certificates.
func (c *ClientValidation) Pool() *x509.CertPool { return c.pool }

// poolOf returns the certificates in f, or an empty pool after it has reported a mistake at n.
func poolOf(n node, f File) *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(f.Data) {
		n.failf("want a file with certificates in PEM")
	}
	return pool
}

// ACME obtains certificates from an ACME server. A public server must be able to reach the
// listener at port 443 for the challenge TLS-ALPN-01, or a listener without TLS at port 80 for
// HTTP-01. Every listener without TLS answers such challenges. Several gateways may share the
// cache.
type ACME struct {
	// Host names to obtain certificates for. TLS handshakes for other names fail.
	Domains []Hostname `yaml:"domains" is:"required"`
	// A folder for the certificates and the account key.
	CacheDirectory string `yaml:"cacheDirectory" is:"required"`
	// The account's email address, to which the server sends notices.
	Email string `yaml:"email"`
	// The ACME server's directory URL. The default is Let's Encrypt.
	DirectoryURL URL `yaml:"directoryURL" default:"https://acme-v02.api.letsencrypt.org/directory"`
	// A PEM file with the certificate authorities that the ACME server's certificate may come
	// from. Absent means the system's.
	CACertificates *File `yaml:"caCertificates"`
}

// check reports names for which the gateway cannot obtain a certificate.
func (a *ACME) check(n node) {
	a.CacheDirectory = n.resolve(a.CacheDirectory)
	if len(a.Domains) == 0 {
		n.at("domains").failf("want at least one domain")
	}
	// A wildcard can only be proven with a DNS record, which the gateway does not create.
	for i, d := range a.Domains {
		if strings.HasPrefix(string(d), "*.") {
			n.at("domains").item(i).failf("want a name without *, because its challenges need DNS")
		}
	}
	if a.CACertificates != nil {
		poolOf(n.at("caCertificates"), *a.CACertificates)
	}
}

// Compression compresses responses with gzip or zstd, if the client accepts either.
type Compression struct {
	// Size of the smallest response body to compress, in bytes.
	MinBytes int `yaml:"minBytes" default:"1024" min:"1" max:"1073741824"`
	// Content types to compress. The default is text, JSON, JavaScript, XML and SVG.
	ContentTypes []string `yaml:"contentTypes"`
}

// check reports content types that would match no response.
func (c *Compression) check(n node) {
	for i, t := range c.ContentTypes {
		// ParseMediaType returns the type in lower case without parameters, so a difference means that t is not in
		// this form.
		if kind, _, _ := mime.ParseMediaType(t); kind != t || !strings.Contains(t, "/") || strings.Contains(t, "*") {
			n.at("contentTypes").item(i).failf("want a content type in lower case, such as text/html")
		}
	}
}

// DefaultAdmin is the default for admin.address.
const DefaultAdmin Address = "127.0.0.1:9901"

// Admin sets the addresses for operators.
type Admin struct {
	// Address for /metrics, /healthz, /readyz and the page with live requests. It must not be
	// public.
	Address Address `yaml:"address" default:"127.0.0.1:9901"`
	// Address for tapctl, or "off". It must be a loopback address. The default is 127.0.0.1:4190,
	// or a free port if that is taken.
	Tap string `yaml:"tap"`
	// True serves the net/http/pprof profiles at /debug/pprof/.
	PProf bool `yaml:"pprof"`
	// Host names under which a browser may open the page with live requests, and under which
	// /metrics may be read at a loopback address. localhost and IP addresses are always allowed.
	Hosts []Hostname `yaml:"hosts"`
}

// check reports an address of the tap that other machines could reach.
func (a *Admin) check(n node) {
	// The address is only parsed to check it. The tap's API is not protected, so it must be on loopback.
	var address Address
	host, _, _ := net.SplitHostPort(a.Tap)
	ip, _ := netip.ParseAddr(host)
	if err := address.parse(a.Tap); a.Tap != "" && a.Tap != "off" && (err != nil || host != "localhost" && !ip.IsLoopback()) {
		n.at("tap").failf(`want a loopback address with a port, such as 127.0.0.1:4190, or "off"`)
	}
}

// AccessLog configures the log with one line for each request.
type AccessLog struct {
	// A line's format: json, common or combined (as in Apache and nginx), or off for no log.
	Format string `yaml:"format" default:"json" enum:"json,common,combined,off"`
	// Fields in each line, for the format json. Absent means all.
	Fields []string `yaml:"fields"`
	// Path of the file, or "stdout". On SIGHUP the gateway reopens the file, so that it can be
	// rotated.
	Path string `yaml:"path" default:"stdout"`
}

// check reports fields that the log does not have.
func (a *AccessLog) check(n node) {
	if a.Path != "stdout" {
		a.Path = n.resolve(a.Path)
	}
	if len(a.Fields) > 0 && a.Format != "json" {
		n.at("fields").failf("want format: json beside fields")
	}
	for i, name := range a.Fields {
		if names := httplayer.JSONLogFields(); !slices.Contains(names, name) {
			n.at("fields").item(i).failf("want one of %s", strings.Join(names, ", "))
		}
	}
}

// LogFormat returns the log format for package httplayer.
func (a *AccessLog) LogFormat() httplayer.AccessLogFormat {
	if a.Format == "json" {
		return httplayer.JSONLogOf(a.Fields...)
	}
	return httplayer.AccessLogFormat(a.Format)
}
