package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// listeners are the open listeners by address. If a new configuration uses the address of an open
// listener, the socket stays open, so that a reload loses no connection.
type listeners struct {
	log *slog.Logger
	// service returns the service for requests to a listener, and the options for its server.
	service func(*config.Listener) (httplayer.Service, []httplayer.ServerOption)
	// tcp returns the server for a TCP listener, and the layer that observes all of its connections.
	tcp    func(*config.Listener) (tcplayer.Server, layer.Layer[net.Conn, tcplayer.ByteCount])
	counts *responses // counts connections
	state  *state     // shows the certificates
	// challenges answers HTTP-01 for the listeners' certificates.
	challenges *challenges

	mu   sync.Mutex
	open map[string]*listener // keyed by socketKey; nil after shutdown
	all  sync.WaitGroup
}

// listener is an open socket. New connections are served by current.
type listener struct {
	socket  net.Listener
	counts  *responses
	close   context.CancelFunc
	current atomic.Pointer[listenerServer]
}

// listenerServer serves a listener's connections with one version of its configuration. A new
// version is a new listenerServer, while open connections stay with the old one.
type listenerServer struct {
	version string
	name    string
	server  tcplayer.Server
	open    prometheus.Gauge   // connections
	drain   context.CancelFunc // closes each connection once its open requests have ended
	acme    *autocert.Manager  // nil without ACME
}

// load opens, changes and closes listeners to match c. If a listener cannot be opened, load
// returns an error and leaves the listeners that c keeps as they were. By then, it may have
// closed a listener that c does not contain, to free its port.
func (l *listeners) load(c *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		return errors.New("the gateway is shutting down")
	}
	// additions are new sockets by key. servers are the new versions of listeners by index, nil where nothing
	// changes.
	additions := make(map[string]*listener)
	servers := make([]*listenerServer, len(c.Listeners))
	// keys contains the sockets that stay or are added.
	keys := make(map[string]bool)
	for i := range c.Listeners {
		keys[socketKey(&c.Listeners[i])] = true
	}
	// Everything that can fail comes first, so that an error does not change the listeners that stay.
	undo := func(err error) error {
		for _, o := range additions {
			_ = o.socket.Close()
		}
		return err
	}
	for i := range c.Listeners {
		cfg := &c.Listeners[i]
		key := socketKey(&c.Listeners[i])
		// The listener stays with its server and its connections.
		if old := l.open[key]; old != nil && old.current.Load().version == cfg.Version() {
			continue
		}
		s, err := l.server(cfg)
		if err != nil {
			return undo(fmt.Errorf("listener %s: %w", cfg.Name, err))
		}
		servers[i] = s
		if l.open[key] == nil {
			socket, err := net.Listen("tcp", string(cfg.Address))
			// The port may be taken by one of our own listeners that is to be closed.
			if errors.Is(err, syscall.EADDRINUSE) && l.closePort(string(cfg.Address), keys) {
				socket, err = net.Listen("tcp", string(cfg.Address))
			}
			if err != nil {
				return undo(fmt.Errorf("listener %s: %w", cfg.Name, &config.AddressError{Address: string(cfg.Address), Err: err}))
			}
			additions[key] = &listener{socket: socket, counts: l.counts}
		}
	}
	for i := range c.Listeners { // nothing fails from here on
		key := socketKey(&c.Listeners[i])
		switch {
		case additions[key] != nil:
			l.open[key] = additions[key]
			l.open[key].current.Store(servers[i])
			l.serve(l.open[key], c.DrainTimeout.D())
		case servers[i] != nil:
			// New connections use the new server. The old one ends its connections when their requests have ended.
			l.open[key].current.Swap(servers[i]).drain()
		}
	}
	for key, open := range l.open {
		if !keys[key] {
			l.closeListener(key, open)
		}
	}
	// Challenges need the managers of the listeners that are open now.
	l.answerChallenges(c)
	return nil
}

// answerChallenges makes listeners without TLS answer the challenges for those with ACME. If
// there are none, certificates are obtained by TLS-ALPN-01 alone.
func (l *listeners) answerChallenges(c *config.Config) {
	managers := make(map[*autocert.Manager]*config.ACME)
	cleartext := false // a listener has the protocol HTTP
	for i := range c.Listeners {
		t := c.Listeners[i].TLS
		cleartext = cleartext || c.Listeners[i].Protocol == "HTTP"
		if t != nil && t.ACME != nil {
			// The ACME server connects to any listener without TLS, so each answers for all managers.
			managers[l.open[socketKey(&c.Listeners[i])].current.Load().acme] = t.ACME
		}
	}
	// Without such a listener, HTTP-01 cannot work.
	if !cleartext {
		clear(managers)
	}
	l.challenges.use(managers)
}

// closePort closes every open listener on address's port that is not in keys, and reports
// whether there was one. Such a listener can be in the way: ":80", for example, prevents
// listening at "192.0.2.1:80".
func (l *listeners) closePort(address string, keys map[string]bool) (closed bool) {
	// The host does not matter: another address on the same port may be in the way.
	_, port, _ := net.SplitHostPort(address)
	for key, open := range l.open {
		if strings.HasSuffix(key, ":"+port) && !keys[key] {
			l.closeListener(key, open)
			_ = open.socket.Close() // do not wait for its connections
			closed = true
		}
	}
	return closed
}

// closeListener closes the listener with this key in l.open and removes it.
func (l *listeners) closeListener(key string, open *listener) {
	l.log.Info("listener closed", "listener", open.current.Load().name)
	open.close()
	delete(l.open, key)
}

// socketKey returns the key for l in the map of open listeners, which is its address. With port 0
// the key also contains the name, because several listeners may use such an address.
func socketKey(l *config.Listener) string {
	// The system chooses another port for each of these listeners.
	if strings.HasSuffix(string(l.Address), ":0") {
		return string(l.Name) + " " + string(l.Address)
	}
	return string(l.Address)
}

// serve accepts connections on open in the background. It sets open.close, which stops this and
// gives requests in progress up to grace to end.
func (l *listeners) serve(open *listener, grace time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	// close stops accepting, and lets each connection end after its open requests.
	open.close = func() {
		cancel()
		open.current.Load().drain()
	}
	name := open.current.Load().name
	l.log.Info("listening", "listener", name, "address", open.socket.Addr().String())
	// shutdown waits for this goroutine, which ends after the last connection.
	l.all.Go(func() {
		err := tcplayer.Serve(ctx, open.socket, open, tcplayer.WithLogger(l.log), tcplayer.WithShutdownTimeout(grace))
		if err != nil {
			l.log.Warn("listener", "listener", name, "err", err)
		}
	})
}

// Ready returns nil, because a new connection can always be served.
func (*listener) Ready(context.Context) error { return nil }

// Call serves conn with the listener's current configuration.
func (l *listener) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	s := l.current.Load()
	// The gauge belongs to this version, and a connection may outlive it.
	s.open.Inc()
	defer s.open.Dec()
	n, err := s.server.Call(context.WithValue(ctx, listenerKey{}, s.name), conn)
	if err != nil {
		l.counts.failed(s.name, err)
	}
	return n, err
}

// shutdown closes all listeners and waits until their connections have ended, at most for the
// drain timeout.
func (l *listeners) shutdown() {
	l.mu.Lock()
	for _, open := range l.open {
		open.close()
	}
	// A nil map rejects a load that comes later.
	l.open = nil
	l.mu.Unlock()
	l.all.Wait()
}

// addresses returns each open listener's socket address by listener name.
func (l *listeners) addresses() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]string)
	for _, open := range l.open {
		all[open.current.Load().name] = open.socket.Addr().String()
	}
	return all
}

// listenerService returns the function that makes a listener's service and its server's options,
// which write the access log and count responses.
func (g *gateway) listenerService(log *accessLog) func(*config.Listener) (httplayer.Service, []httplayer.ServerOption) {
	return func(c *config.Listener) (httplayer.Service, []httplayer.ServerOption) {
		scheme := "http"
		if c.TLS != nil {
			scheme = "https"
		}
		opts := append(g.front(c),
			httplayer.WithScheme(scheme), httplayer.WithErrorHandler(errorPages(c.ErrorPages)),
			httplayer.WithOnResponse(g.responses.of(string(c.Name))))
		// The format is fixed at start, so a listener without a log needs no check for each response.
		if log.format != "off" {
			opts = append(opts, httplayer.WithAccessLog(log.lines, log.format, nil))
		}
		return g.service(c), opts
	}
}

// server returns the server for a listener's connections. Each connection passes through the
// connection limit, the PROXY protocol, TLS, and then HTTP or the TCP routes.
func (l *listeners) server(c *config.Listener) (*listenerServer, error) {
	// drain makes the HTTP connections of this version close, and has no effect on TCP routes.
	ctx, drain := context.WithCancel(context.Background())
	var svc tcplayer.Server
	var observe layer.Layer[net.Conn, tcplayer.ByteCount] // nil for HTTP, whose requests are observed
	if c.Protocol == "TCP" {
		svc, observe = l.tcp(c)
	} else {
		svc = l.httpServer(ctx, c)
	}
	// svc is wrapped from the inside to the outside: TLS, then PROXY protocol, then the limit.
	var manager *autocert.Manager
	if c.TLS != nil {
		cfg, acme, err := serverTLS(c.TLS)
		if err != nil {
			drain()
			return nil, err
		}
		manager = acme
		l.state.observe(string(c.Name), cfg)
		svc = &terminated{Server: svc, cfg: cfg, timeout: c.RequestHeadersTimeout.D()}
	}
	if len(c.ProxyProtocol) > 0 {
		// Connections from other addresses have no PROXY header, and are served as they are.
		svc = tcplayer.Transparent(tcplayer.ProxyProtocol(
			tcplayer.WithDetectTimeout(c.RequestHeadersTimeout.D()), tcplayer.WithSkipDetect(notOneOf(c.ProxyProtocol)),
		), svc, svc)
	}
	if c.MaxConnections > 0 {
		// The limit counts until the server returns, which is the end of the connection.
		svc = layer.Limit[net.Conn, tcplayer.ByteCount](c.MaxConnections, layer.WithCompletion(layer.AtReturn[tcplayer.ByteCount]))(svc)
	}
	if observe != nil {
		svc = observe(svc)
	}
	return &listenerServer{c.Version(), string(c.Name), svc, l.counts.open.WithLabelValues(string(c.Name)), drain, manager}, nil
}

// httpServer returns the server for requests to c. It drains its connections when ctx ends.
func (l *listeners) httpServer(ctx context.Context, c *config.Listener) tcplayer.Server {
	requests, opts := l.service(c)
	return httplayer.NewServer(requests, append(opts,
		httplayer.WithDrainOnDone(ctx), httplayer.WithLogger(l.log),
		httplayer.WithServerIdleTimeout(c.IdleTimeout.D()), httplayer.WithHeaderTimeout(c.RequestHeadersTimeout.D()),
		httplayer.WithMinBodyRate(c.RequestBodyIdleTimeout.D(), c.MinRequestBodyRate), httplayer.WithMaxHeaderBytes(c.MaxHeaderBytes),
		httplayer.WithHTTP2Config(http.HTTP2Config{MaxConcurrentStreams: c.MaxConcurrentStreams}))...)
}

// notOneOf returns a function that reports whether a connection comes from none of senders.
func notOneOf(senders []config.Prefix) func(context.Context, net.Conn) bool {
	return func(_ context.Context, conn net.Conn) bool {
		return !contains(senders, peerOf(conn).Addr())
	}
}

// serverTLS converts t for crypto/tls. The manager is nil without ACME.
func serverTLS(t *config.ListenerTLS) (*tls.Config, *autocert.Manager, error) {
	// 1.2 is the default, because older versions are not secure.
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if t.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	for i := range t.Certificates {
		cfg.Certificates = append(cfg.Certificates, t.Certificates[i].TLS())
	}
	if v := t.ClientValidation; v != nil {
		cfg.ClientCAs = v.Pool()
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		// An optional certificate must still be valid if the client sends one.
		if v.Mode == "Optional" {
			cfg.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	if t.ACME == nil {
		return cfg, nil, nil
	}
	manager, err := certificates(t.ACME)
	if err != nil {
		return nil, nil, err
	}
	// The manager obtains a certificate at the first handshake for its domain.
	cfg.GetCertificate = manager.GetCertificate
	// TLS-ALPN-01 challenges are answered in a handshake with this protocol.
	cfg.NextProtos = append(cfg.NextProtos, acme.ALPNProto)
	return cfg, manager, nil
}

// certificates returns the manager that obtains and renews a listener's certificates by ACME. It
// trusts a.CACertificates for the connection to the ACME server, or by default the system's.
func certificates(a *config.ACME) (*autocert.Manager, error) {
	client := &acme.Client{DirectoryURL: string(a.DirectoryURL)}
	if a.CACertificates != nil {
		// A private authority, for example in tests, replaces the system's.
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(a.CACertificates.Data) {
			return nil, errors.New("acme: no certificate authority")
		}
		tlsConfig := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		client.HTTPClient = &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: tlsConfig}}
	}
	return &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(a.CacheDirectory), HostPolicy: autocert.HostWhitelist(texts(a.Domains)...),
		Email: a.Email, Client: client,
	}, nil
}

// terminated is a server that completes the TLS handshake and passes the decrypted connection to
// the inner server.
type terminated struct {
	tcplayer.Server

	cfg     *tls.Config
	timeout time.Duration
}

// Call does the TLS handshake and passes the decrypted connection on.
func (t *terminated) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	tlsConn := tls.Server(conn, t.cfg)
	// The timeout is only for the handshake, and not for the connection.
	limit, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if err := tlsConn.HandshakeContext(limit); err != nil {
		_ = conn.Close()
		return tcplayer.ByteCount{}, &layer.Error{Layer: "tls", Reason: "handshake", Err: err}
	}
	return t.Server.Call(ctx, tlsConn)
}
