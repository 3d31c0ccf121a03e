package config

import (
	"crypto/tls"
	"crypto/x509"
	"mime"
	"net"
	"net/netip"
	"strings"
)

// Listener is an address at which clients connect. It serves HTTP/1.1 and HTTP/2. HTTP/2 is
// used by prior knowledge in cleartext, and by ALPN with TLS.
type Listener struct {
	// The name of the listener in routes, logs and metrics.
	Name Name `yaml:"name" is:"required"`
	// The address to listen on: an IP address with a port, or :8080 for all interfaces.
	Address Address `yaml:"address" is:"required"`
	// HTTP serves cleartext. HTTPS serves TLS and requires the field tls.
	Protocol string `yaml:"protocol" default:"HTTP" enum:"HTTP,HTTPS"`
	// The certificates of a listener with the protocol HTTPS.
	TLS *ListenerTLS `yaml:"tls"`
	// True requires a header of the PROXY protocol, version 1 or 2, at the beginning of
	// each connection. The header changes the client address, so only trusted load
	// balancers should be able to connect.
	ProxyProtocol bool `yaml:"proxyProtocol"`
	// The addresses of proxies in front of the gateway. The gateway keeps the X-Forwarded
	// and Forwarded headers that these proxies send, and adds its own values to them. It
	// replaces such headers that other clients send. X-Forwarded-Proto is the scheme of a
	// request for redirects and cookies.
	TrustedProxies []Prefix `yaml:"trustedProxies"`
	// Compresses responses with gzip or zstd. Absent means no compression.
	Compression *Compression `yaml:"compression"`
	// How long a connection without requests stays open. 0s means no limit.
	IdleTimeout Duration `yaml:"idleTimeout" default:"2m"`
	// How long a client may take to send the headers of a request, and for the TLS handshake.
	RequestHeadersTimeout Duration `yaml:"requestHeadersTimeout" default:"10s"`
	// The maximum size of the headers of a request, in bytes.
	MaxHeaderBytes int `yaml:"maxHeaderBytes" default:"32768" min:"1024" max:"1048576"`
	// The maximum number of open connections. A connection above the maximum is reset. 0
	// means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"10000000"`
	// The maximum number of concurrent requests of one HTTP/2 connection.
	MaxConcurrentStreams int `yaml:"maxConcurrentStreams" default:"100" min:"1" max:"10000"`

	version string
}

// Version returns a text that changes when the configuration of the listener changes.
func (l *Listener) Version() string { return l.version }

func (l *Listener) check(n node) {
	switch {
	case l.Protocol == "HTTPS" && l.TLS == nil:
		n.at("tls").failf("missing: protocol HTTPS needs tls with certificates or acme")
	case l.Protocol == "HTTP" && l.TLS != nil:
		n.at("tls").failf("want protocol: HTTPS beside tls")
	}
	if l.RequestHeadersTimeout == 0 {
		n.at("requestHeadersTimeout").failf("want a duration above 0")
	}
}

// ListenerTLS configures TLS for the connections of clients. The certificates come either
// from files or from an ACME server.
type ListenerTLS struct {
	// The certificates. The server name that a client requests selects one of them. The
	// first one is used if the name matches none of them.
	Certificates []Certificate `yaml:"certificates"`
	// Obtains and renews certificates from an ACME server.
	ACME *ACME `yaml:"acme"`
	// The lowest version of TLS that is accepted.
	MinVersion string `yaml:"minVersion" default:"1.2" enum:"1.2,1.3"`
	// Requests and verifies certificates of clients. Absent means that clients need none.
	ClientValidation *ClientValidation `yaml:"clientValidation"`
}

func (t *ListenerTLS) oneOf() []string { return []string{"certificates", "acme"} }

func (t *ListenerTLS) check(n node) {
	if t.ACME == nil && len(t.Certificates) == 0 {
		n.at("certificates").failf("want at least one certificate")
	}
}

// Certificate is a certificate with its private key, in PEM files.
type Certificate struct {
	// The file with the certificate, followed by the intermediate certificates.
	CertificateChain File `yaml:"certificateChain" is:"required"`
	// The file with the private key of the certificate.
	PrivateKey File `yaml:"privateKey" is:"required"`

	pair tls.Certificate
}

func (c *Certificate) check(n node) {
	pair, err := tls.X509KeyPair(c.CertificateChain.Data, c.PrivateKey.Data)
	if err != nil {
		n.at("certificateChain").failf("want a certificate and its private key in PEM: %s", strings.TrimPrefix(err.Error(), "tls: "))
		return
	}
	c.pair = pair
}

// TLS returns the certificate with its private key for crypto/tls.
func (c *Certificate) TLS() tls.Certificate { return c.pair }

// ClientValidation specifies how the certificates of clients are verified.
type ClientValidation struct {
	// The file with the certificate authorities that issue certificates of clients, in PEM.
	CACertificates File `yaml:"caCertificates" is:"required"`
	// Require rejects clients without a valid certificate. Optional accepts clients without
	// a certificate, but rejects an invalid one.
	Mode string `yaml:"mode" default:"Require" enum:"Require,Optional"`

	pool *x509.CertPool
}

func (c *ClientValidation) check(n node) { c.pool = poolOf(n.at("caCertificates"), c.CACertificates) }

// Pool returns the certificate authorities that issue certificates of clients.
func (c *ClientValidation) Pool() *x509.CertPool { return c.pool }

func poolOf(n node, f File) *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(f.Data) {
		n.failf("want a file with certificates in PEM")
	}
	return pool
}

// ACME obtains certificates from an ACME server by the challenge TLS-ALPN-01. A public
// server must be able to connect to the listener at port 443.
type ACME struct {
	// The host names for which certificates are obtained. A TLS handshake for another name
	// fails.
	Domains []Hostname `yaml:"domains" is:"required"`
	// The folder in which the certificates and the account key are stored.
	CacheDirectory string `yaml:"cacheDirectory" is:"required"`
	// The email address of the account, to which the server sends notices.
	Email string `yaml:"email"`
	// The URL of the directory of the ACME server. The default is the server of Let's
	// Encrypt.
	DirectoryURL URL `yaml:"directoryURL" default:"https://acme-v02.api.letsencrypt.org/directory"`
	// The file with the certificate authorities of the ACME server, in PEM. Absent means
	// the authorities of the system.
	CACertificates *File `yaml:"caCertificates"`
}

func (a *ACME) check(n node) {
	if len(a.Domains) == 0 {
		n.at("domains").failf("want at least one domain")
	}
	for i, d := range a.Domains {
		if strings.HasPrefix(string(d), "*.") {
			n.at("domains").item(i).failf("want a name without *, because its challenges need DNS")
		}
	}
	if a.CACertificates != nil {
		poolOf(n.at("caCertificates"), *a.CACertificates)
	}
}

// Compression compresses responses with gzip or zstd, if the client accepts one of them.
type Compression struct {
	// The size of the smallest response body that is compressed, in bytes.
	MinBytes int `yaml:"minBytes" default:"1024" min:"1" max:"1073741824"`
	// The content types that are compressed. The default is text, JSON, JavaScript, XML and
	// SVG.
	ContentTypes []string `yaml:"contentTypes"`
}

func (c *Compression) check(n node) {
	for i, t := range c.ContentTypes {
		if kind, _, _ := mime.ParseMediaType(t); kind != t || !strings.Contains(t, "/") || strings.Contains(t, "*") {
			n.at("contentTypes").item(i).failf("want a content type in lower case, such as text/html")
		}
	}
}

// Admin specifies the addresses for operators.
type Admin struct {
	// The address of /metrics, /healthz, /readyz and the page with live requests. It must
	// not be public.
	Address Address `yaml:"address" default:"127.0.0.1:9901"`
	// The address at which tapctl connects, or "off". It must be a loopback address.
	Tap string `yaml:"tap" default:"127.0.0.1:4190"`
	// Host names by which a browser may open the page with live requests. localhost and IP
	// addresses are always allowed.
	Hosts []Hostname `yaml:"hosts"`
}

func (a *Admin) check(n node) {
	var address Address
	host, _, _ := net.SplitHostPort(a.Tap)
	ip, _ := netip.ParseAddr(host)
	if err := address.parse(a.Tap); a.Tap != "off" && (err != nil || host != "localhost" && !ip.IsLoopback()) {
		n.at("tap").failf(`want a loopback address with a port, such as 127.0.0.1:4190, or "off"`)
	}
}

// AccessLog configures the log with one line for each request.
type AccessLog struct {
	// The format of a line: json, apache (the combined log format), or off for no log.
	Format string `yaml:"format" default:"json" enum:"json,apache,off"`
	// The path of the file, or "stdout". On SIGHUP the gateway opens the file again.
	Path string `yaml:"path" default:"stdout"`
}
