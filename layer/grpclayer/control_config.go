package grpclayer

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// ControlPlaneConfig is what [NewControlPlaneConn] can be told. Only Addr is needed. The
// defaults are those of linkerd's proxy, outbound.
type ControlPlaneConfig struct {
	// Addr is "host:port". A host that is an IP address, or localhost with or
	// without a dot at its end, is not looked up; of any other the SRV records
	// are asked for, and where there are none, the A and AAAA records. Addr is
	// also the authority of every call.
	Addr string

	// TLS is how connections are secured; nil means in clear. Where it says no
	// ServerName, that is the host of Addr without the dot at its end. Where
	// NextProtos is nil, "h2" is offered; a server that chooses nothing is
	// spoken to all the same, since proxies in front of servers do that.
	TLS *tls.Config

	// ConnectTimeout is how long TCP, TLS and the first word of HTTP/2 may take
	// together. 1 s if it is 0 or less; linkerd's proxy takes its inbound
	// timeout, 300 ms, for controllers on the loopback.
	ConnectTimeout time.Duration

	// KeepAlive is how long a connection is silent before TCP asks whether the
	// peer is there, and how long after that it asks again; after three times it
	// is gone. 10 s if it is 0; less than 0 does not ask.
	KeepAlive time.Duration

	// Backoff is between attempts to connect to one address. A field that is 0 has
	// its default.
	Backoff layer.Backoff

	// QueueCapacity is how many calls and streams may wait for a connection:
	// 1000 if it is 0, none if it is less.
	QueueCapacity int

	// FailFast is how long they may. 30 s if it is 0; less than 0 is as long as
	// their contexts allow.
	FailFast time.Duration

	// Resolver finds the addresses of hosts. Nil means [dns.New].
	Resolver resolve.Resolver

	// UserAgent comes before gRPC's own.
	UserAgent string

	// DialOptions are for each connection, such as message sizes and
	// credentials of calls. They come last and win, so leave transport
	// credentials and dialers alone.
	DialOptions []grpc.DialOption

	Instruments layer.Instruments   // of calls, the queue, and Connects
	Balancer    balance.Instruments // of the addresses
	Log         *slog.Logger        // warnings of connections that fail, and when they are well again; nil is silence
}

// checked returns the config with its defaults, or what is wrong with it.
func (c ControlPlaneConfig) checked() (ControlPlaneConfig, error) {
	if c.Addr == "" {
		return c, errors.New("there is no Addr: it is host:port")
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return c, err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return c, fmt.Errorf("address %q: the port is not a number from 1 to 65535", c.Addr)
	}
	if strings.TrimSuffix(host, ".") == "" {
		return c, fmt.Errorf("address %q: there is no host", c.Addr)
	}
	c.TLS = controlTLSConfig(c.TLS, strings.TrimSuffix(host, "."))
	if err := backoff.Check(c.Backoff); err != nil {
		return c, err
	}
	c.Backoff = c.Backoff.OrDefault()
	c.ConnectTimeout = max(c.ConnectTimeout, 0)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 10*time.Second)
	c.QueueCapacity = cmp.Or(c.QueueCapacity, 1000)
	c.FailFast = cmp.Or(c.FailFast, 30*time.Second)
	if c.Resolver == nil {
		c.Resolver = dns.New()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// controlTLSConfig returns a copy of cfg, which may be nil, for a host.
func controlTLSConfig(cfg *tls.Config, host string) *tls.Config {
	if cfg == nil {
		return nil
	}
	cfg = cfg.Clone()
	cfg.ServerName = cmp.Or(cfg.ServerName, host)
	if cfg.NextProtos == nil {
		cfg.NextProtos = []string{"h2"}
	}
	return cfg
}
