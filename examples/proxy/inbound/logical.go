package inbound

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// logical is what requests are counted by: the address of the application, the
// name that the client used for it, and who the client is.
type logical struct {
	dst    netip.AddrPort
	name   string // name:port; "" is none
	secure bool
	client string // its identity; "" is none
}

// canonicalHeader is how the proxy of a client says by which name it balanced.
const canonicalHeader = "L5d-Dst-Canonical"

// logicalOf looks at the canonical name, the authority and the Host of a
// request, in this order. Addresses are no names.
func (in *Inbound) logicalOf(req *http.Request) (logical, error) {
	l, err := namelessOf(req)
	if err != nil {
		return logical{}, err
	}
	for _, authority := range []string{req.Header.Get(canonicalHeader), httplayer.Accessor{}.Authority(req)} {
		if l.name = nameOf(authority); l.name != "" {
			break
		}
	}
	if !in.counts(l.name) {
		l.name = ""
	}
	return l, nil
}

// namelessOf is logicalOf without a name.
func namelessOf(req *http.Request) (logical, error) {
	conn := httplayer.ConnFromContext(req.Context())
	dst, ok := tcplayer.OriginalDst(conn)
	if !ok {
		return logical{}, errors.New("the connection was made to no port of the application")
	}
	c := callerOf(req.Context())
	return logical{dst: dst, secure: c.secure, client: c.id}, nil
}

// counts reports whether anything is counted by name: the routes of a profile,
// or everything.
func (in *Inbound) counts(name string) bool {
	host, _, _ := net.SplitHostPort(name)
	return in.AuthorityLabels || in.Control.ProfileSuffixes.Contains(host)
}

// nameOf returns authority as name:port, or "" if it is an address or no name.
func nameOf(authority string) string {
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		host, port = authority, "80"
	}
	host = strings.TrimSuffix(host, ".")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || (tcplayer.TransportHeader{Port: uint16(n), Name: host}).Validate() != nil || host == "" {
		return ""
	}
	return strings.ToLower(host) + ":" + strconv.FormatUint(n, 10)
}

// labels are those of the metrics. A name comes from clients, who may say any:
// it is one only if that was asked for.
func (in *Inbound) labels(l logical) meters.Labels {
	labels := meters.Client{Secure: l.secure, ID: l.client}.Labels().With(meters.Target(l.dst)).
		With(meters.Allowed(string(in.DefaultPolicy), l.dst))
	if in.AuthorityLabels {
		labels["authority"] = l.name
	}
	return labels
}

// shown is what tap shows of the requests.
func (in *Inbound) shown(l logical) []tap.Option {
	source := map[string]string{"tls": "no_tls_from_remote"}
	if l.secure {
		source["tls"] = "true"
		if l.client != "" {
			source["client_id"] = l.client
		}
	}
	return []tap.Option{tap.Inbound, tap.WithSourceLabels(source), application(l.dst)}
}

// application is what tap shows of a port of the application.
func application(dst netip.AddrPort) tap.Option {
	return tap.WithDestination(dst, map[string]string{"tls": "loopback"})
}
