package config

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
)

// Listener is an address at which clients connect. It serves HTTP/1.1 and HTTP/2: in cleartext
// HTTP/2 by prior knowledge, with TLS by ALPN.
type Listener struct {
	// The name, for routes, logs and metrics.
	Name Name `yaml:"name" is:"required"`
	// The address: an IP address with a port, or :8080 for all interfaces.
	Address Address `yaml:"address" is:"required"`
	// HTTP is cleartext, HTTPS is TLS and needs tls.
	Protocol string `yaml:"protocol" default:"HTTP" enum:"HTTP,HTTPS"`
	// The certificates of HTTPS.
	TLS *ListenerTLS `yaml:"tls"`
	// Each connection starts with a header of the PROXY protocol, version 1 or 2. Only trusted
	// load balancers should then be able to connect.
	ProxyProtocol bool `yaml:"proxyProtocol"`
	// Proxies in front of the gateway. Their X-Forwarded and Forwarded headers are extended,
	// and those of other clients are replaced.
	TrustedProxies []Prefix `yaml:"trustedProxies"`
	// Compresses responses with gzip or zstd. Absent means no compression.
	Compression *Compression `yaml:"compression"`
	// Closes a connection without requests.
	IdleTimeout Duration `yaml:"idleTimeout" default:"2m"`
	// Limits the time of a client for the headers of a request.
	RequestHeadersTimeout Duration `yaml:"requestHeadersTimeout" default:"10s"`
	// Limits the size of the headers of a request.
	MaxHeaderBytes int `yaml:"maxHeaderBytes" default:"32768" min:"1024" max:"1048576"`
	// Limits the open connections; further ones are reset. 0 means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"10000000"`
	// Limits the concurrent requests of an HTTP/2 connection.
	MaxConcurrentStreams int `yaml:"maxConcurrentStreams" default:"100" min:"1" max:"10000"`

	version string
}

// Version returns a text that changes with the listener.
func (l *Listener) Version() string { return l.version }

func (l *Listener) check(n node) {
	switch {
	case l.Protocol == "HTTPS" && l.TLS == nil:
		n.at("tls").failf("missing: protocol HTTPS needs tls with certificates or acme")
	case l.Protocol == "HTTP" && l.TLS != nil:
		n.at("tls").failf("want protocol: HTTPS beside tls")
	}
}

// ListenerTLS configures TLS towards clients.
type ListenerTLS struct {
	// Certificates, selected by the server name. The first one is the default.
	Certificates []Certificate `yaml:"certificates"`
	// Obtains and renews certificates automatically.
	ACME *ACME `yaml:"acme"`
	// The lowest version of TLS.
	MinVersion string `yaml:"minVersion" default:"1.2" enum:"1.2,1.3"`
	// Requests and verifies certificates of clients.
	ClientValidation *ClientValidation `yaml:"clientValidation"`
}

func (t *ListenerTLS) oneOf() []string { return []string{"certificates", "acme"} }

func (t *ListenerTLS) check(n node) {
	if t.ACME == nil && len(t.Certificates) == 0 {
		n.at("certificates").failf("want at least one certificate")
	}
}

// Certificate is a certificate with its private key, in PEM.
type Certificate struct {
	// The file of the certificate, followed by intermediate certificates.
	CertificateChain File `yaml:"certificateChain" is:"required"`
	// The file of the private key.
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

// TLS returns the certificate.
func (c *Certificate) TLS() tls.Certificate { return c.pair }

// ClientValidation verifies the certificates of clients.
type ClientValidation struct {
	// The file with the certificate authorities in PEM.
	CACertificates File `yaml:"caCertificates" is:"required"`
	// Require rejects clients without a valid certificate. Optional accepts clients without one.
	Mode string `yaml:"mode" default:"Require" enum:"Require,Optional"`

	pool *x509.CertPool
}

func (c *ClientValidation) check(n node) { c.pool = poolOf(n.at("caCertificates"), c.CACertificates) }

// Pool returns the certificate authorities.
func (c *ClientValidation) Pool() *x509.CertPool { return c.pool }

func poolOf(n node, f File) *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(f.Data) {
		n.failf("want a file with certificates in PEM")
	}
	return pool
}

// ACME obtains certificates from an ACME server by the challenge TLS-ALPN-01. For a public server the
// listener must be reachable at port 443.
type ACME struct {
	// The names of the certificates.
	Domains []Hostname `yaml:"domains" is:"required"`
	// The folder in which certificates and the account key are kept.
	CacheDirectory string `yaml:"cacheDirectory" is:"required"`
	// The address that the server notifies about problems.
	Email string `yaml:"email"`
	// The directory of the ACME server. The default is that of Let's Encrypt.
	DirectoryURL URL `yaml:"directoryURL" default:"https://acme-v02.api.letsencrypt.org/directory"`
	// Certificate authorities of the ACME server in PEM, if they are private.
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

// Compression compresses responses if the client accepts it.
type Compression struct {
	// The smallest body that is compressed, in bytes.
	MinBytes int `yaml:"minBytes" default:"1024" min:"1" max:"1073741824"`
	// The compressed content types. The default is text, JSON, JavaScript, XML and
	// SVG.
	ContentTypes []string `yaml:"contentTypes"`
}

// Admin is the listener of operators.
type Admin struct {
	// The address of /metrics, /healthz, /readyz and the page. It must not be public.
	Address Address `yaml:"address" default:"127.0.0.1:9901"`
	// The address of the tap API for tapctl, or "off". It must be a loopback address.
	Tap string `yaml:"tap" default:"127.0.0.1:4190"`
	// Host names besides localhost by which a browser may open the page.
	Hosts []Hostname `yaml:"hosts"`
}

func (a *Admin) check(n node) {
	var address Address
	if err := address.parse(a.Tap); err != nil && a.Tap != "off" {
		n.at("tap").failf(`want a loopback address with a port, such as 127.0.0.1:4190, or "off"`)
	}
}

// AccessLog is the log of requests.
type AccessLog struct {
	// The format of a line.
	Format string `yaml:"format" default:"json" enum:"json,apache,off"`
	// The file, or "stdout". SIGHUP opens the file again.
	Path string `yaml:"path" default:"stdout"`
}
