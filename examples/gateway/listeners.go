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

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// listeners has the open listeners by address. If a new configuration has the address of an
// open listener, the listener keeps its socket, so that a reload loses no connection.
type listeners struct {
	log *slog.Logger
	// handler returns the HTTP handler for the listener with the given configuration.
	handler func(*config.Listener) (http.Handler, error)

	mu   sync.Mutex
	open map[string]*listener // by the result of socketKey; nil after shutdown
	all  sync.WaitGroup
}

// listener is one open socket. The field current serves new connections of the socket.
type listener struct {
	socket  net.Listener
	close   context.CancelFunc
	current atomic.Pointer[listenerServer]
}

// listenerServer serves the connections of a listener according to one configuration of the
// listener. When the configuration changes, another listenerServer serves new connections.
type listenerServer struct {
	version string
	name    string
	server  tcplayer.Server
	drain   context.CancelFunc // closes each connection when its open requests have ended
}

// load opens, changes and closes listeners so that they match c. If a listener cannot be opened,
// load returns an error and does not change the open listeners that c also has. It may already
// have closed a listener that c does not have, because a listener in c needed its port.
func (l *listeners) load(c *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		return errors.New("the gateway is shutting down")
	}
	opened, servers := make(map[string]*listener), make([]*listenerServer, len(c.Listeners))
	wanted := make(map[string]bool)
	for i := range c.Listeners {
		wanted[socketKey(&c.Listeners[i])] = true
	}
	undo := func(err error) error {
		for _, o := range opened {
			_ = o.socket.Close()
		}
		return err
	}
	for i := range c.Listeners {
		cfg, key := &c.Listeners[i], socketKey(&c.Listeners[i])
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
			if errors.Is(err, syscall.EADDRINUSE) && l.closePort(string(cfg.Address), wanted) {
				socket, err = net.Listen("tcp", string(cfg.Address))
			}
			if err != nil {
				return undo(fmt.Errorf("listener %s: %w", cfg.Name, &config.AddressError{Address: string(cfg.Address), Err: err}))
			}
			opened[key] = &listener{socket: socket}
		}
	}
	for i := range c.Listeners {
		key := socketKey(&c.Listeners[i])
		switch {
		case opened[key] != nil:
			l.open[key] = opened[key]
			l.open[key].current.Store(servers[i])
			l.serve(l.open[key], c.DrainTimeout.D())
		case servers[i] != nil:
			l.open[key].current.Swap(servers[i]).drain()
		}
	}
	for key, open := range l.open {
		if !wanted[key] {
			l.closeListener(key, open)
		}
	}
	return nil
}

// closePort closes each open listener that has the port of address and is not in wanted,
// because it can prevent a new listener at address. For example, a listener at ":80" can
// prevent one at "192.0.2.1:80". closePort returns true if it closed a listener.
func (l *listeners) closePort(address string, wanted map[string]bool) (closed bool) {
	_, port, _ := net.SplitHostPort(address)
	for key, open := range l.open {
		if strings.HasSuffix(key, ":"+port) && !wanted[key] {
			l.closeListener(key, open)
			_ = open.socket.Close() // at once
			closed = true
		}
	}
	return closed
}

func (l *listeners) closeListener(key string, open *listener) {
	l.log.Info("listener closed", "listener", open.current.Load().name)
	open.close()
	delete(l.open, key)
}

// socketKey returns the key of l in the map of open listeners, which is the address of l.
// If the port is 0, the key also contains the name, because several listeners may have such
// an address.
func socketKey(l *config.Listener) string {
	if strings.HasSuffix(string(l.Address), ":0") {
		return string(l.Name) + " " + string(l.Address)
	}
	return string(l.Address)
}

// serve accepts connections in the background on a listener, the argument open. It sets the
// function open.close, which ends this. Requests in progress may then take up to the duration
// grace to end.
func (l *listeners) serve(open *listener, grace time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	open.close = func() {
		cancel()
		open.current.Load().drain()
	}
	name := open.current.Load().name
	l.log.Info("listening", "listener", name, "address", open.socket.Addr().String())
	l.all.Go(func() {
		err := tcplayer.Serve(ctx, open.socket, open, tcplayer.WithLogger(l.log), tcplayer.WithShutdownTimeout(grace))
		if err != nil {
			l.log.Warn("listener", "listener", name, "err", err)
		}
	})
}

// Ready returns nil, because a new connection can always be served.
func (*listener) Ready(context.Context) error { return nil }

// Call serves conn with the current configuration of the listener.
func (l *listener) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	s := l.current.Load()
	return s.server.Call(context.WithValue(ctx, listenerKey{}, s.name), conn)
}

// shutdown closes all listeners and waits until their connections have ended. The wait is
// limited by the drain timeout.
func (l *listeners) shutdown() {
	l.mu.Lock()
	for _, open := range l.open {
		open.close()
	}
	l.open = nil
	l.mu.Unlock()
	l.all.Wait()
}

// addresses returns the socket address of each open listener, by the name of the listener.
func (l *listeners) addresses() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]string)
	for _, open := range l.open {
		all[open.current.Load().name] = open.socket.Addr().String()
	}
	return all
}

// listenerHandler returns the function that makes the HTTP handler of a listener. The
// handler writes the access log, compresses responses, and passes requests to the routes.
func (g *gateway) listenerHandler(log *accessLog) func(*config.Listener) (http.Handler, error) {
	return func(c *config.Listener) (http.Handler, error) {
		h := g.handler(c)
		if c.Compression != nil {
			var err error
			if h, err = compressed(c.Compression, h); err != nil {
				return nil, err
			}
		}
		if log.format != "off" {
			h = httplayer.AccessLog(log, log.format, nil)(h)
		}
		return g.tracing.begin(h), nil
	}
}

// server returns the server for the connections of a listener. It processes a connection in
// this order: limit of connections, PROXY protocol, TLS, HTTP.
func (l *listeners) server(c *config.Listener) (*listenerServer, error) {
	h, err := l.handler(c)
	if err != nil {
		return nil, err
	}
	ctx, drain := context.WithCancel(context.Background())
	var svc tcplayer.Server = httplayer.NewServer(h,
		httplayer.WithDrainOnDone(ctx), httplayer.WithServerLogger(l.log),
		httplayer.WithServerIdleTimeout(c.IdleTimeout.D()), httplayer.WithHeaderTimeout(c.RequestHeadersTimeout.D()),
		httplayer.WithMaxHeaderBytes(c.MaxHeaderBytes),
		httplayer.WithHTTP2Config(http.HTTP2Config{MaxConcurrentStreams: c.MaxConcurrentStreams}))
	if c.TLS != nil {
		cfg, err := serverTLS(c.TLS)
		if err != nil {
			drain()
			return nil, err
		}
		svc = &terminated{Server: svc, cfg: cfg, timeout: c.RequestHeadersTimeout.D()}
	}
	if c.ProxyProtocol {
		svc = tcplayer.Transparent(tcplayer.ProxyProtocol(tcplayer.WithDetectTimeout(c.RequestHeadersTimeout.D())), svc, svc)
	}
	if c.MaxConnections > 0 {
		svc = layer.Limit[net.Conn, tcplayer.ByteCount](c.MaxConnections, layer.WithCompletion(layer.AtReturn[tcplayer.ByteCount]))(svc)
	}
	return &listenerServer{c.Version(), string(c.Name), svc, drain}, nil
}

// serverTLS converts t to a configuration of crypto/tls.
func serverTLS(t *config.ListenerTLS) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if t.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	for i := range t.Certificates {
		cfg.Certificates = append(cfg.Certificates, t.Certificates[i].TLS())
	}
	if v := t.ClientValidation; v != nil {
		cfg.ClientCAs, cfg.ClientAuth = v.Pool(), tls.RequireAndVerifyClientCert
		if v.Mode == "Optional" {
			cfg.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	if t.ACME != nil {
		manager, err := certificates(t.ACME)
		if err != nil {
			return nil, err
		}
		cfg.GetCertificate, cfg.NextProtos = manager.GetCertificate, append(cfg.NextProtos, acme.ALPNProto)
	}
	return cfg, nil
}

// certificates returns the manager that obtains and renews the certificates of a listener
// by ACME.
func certificates(a *config.ACME) (*autocert.Manager, error) {
	client := &acme.Client{DirectoryURL: string(a.DirectoryURL)}
	if a.CACertificates != nil {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(a.CACertificates.Data) {
			return nil, errors.New("acme: no certificate authority")
		}
		trusting := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		client.HTTPClient = &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: trusting}}
	}
	return &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(a.CacheDirectory), HostPolicy: autocert.HostWhitelist(texts(a.Domains)...),
		Email: a.Email, Client: client,
	}, nil
}

// terminated is a server that completes the TLS handshake of a connection and passes the
// decrypted connection to the inner server.
type terminated struct {
	tcplayer.Server

	cfg     *tls.Config
	timeout time.Duration
}

func (t *terminated) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	secured := tls.Server(conn, t.cfg)
	limit, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if err := secured.HandshakeContext(limit); err != nil {
		_ = conn.Close()
		return tcplayer.ByteCount{}, &layer.Error{Layer: "tls", Reason: "handshake", Err: err}
	}
	return t.Server.Call(ctx, secured)
}
