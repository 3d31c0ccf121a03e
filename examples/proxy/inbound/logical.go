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

// logicalKey is the key by which requests are counted.
type logicalKey struct {
	dst    netip.AddrPort // of the application
	name   string         // name:port that the client used, or ""
	secure bool
	client string // identity, or ""
}

// canonicalHeader has the name by which the client's proxy balanced the request.
const canonicalHeader = "L5d-Dst-Canonical"

// logicalKey returns the key of a request. Its name is the canonical name, or else
// the authority or Host, if that is not an address.
func (in *Inbound) logicalKey(req *http.Request) (logicalKey, error) {
	dst, ok := tcplayer.OriginalDst(httplayer.ConnFromContext(req.Context()))
	if !ok {
		return logicalKey{}, errors.New("the connection has no original destination")
	}
	c := clientFromContext(req.Context())
	l := logicalKey{dst: dst, secure: c.secure, client: c.id}
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

// counts reports whether requests are counted by this name.
func (in *Inbound) counts(name string) bool {
	host, _, _ := net.SplitHostPort(name)
	return in.AuthorityLabels || in.Control.ProfileSuffixes.Contains(host)
}

// nameOf returns authority as name:port, or "" if it is an address or not valid.
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

// labels returns the labels of l in metrics. The name is a label only if that is
// configured, because clients choose it.
func (in *Inbound) labels(l logicalKey) meters.Labels {
	labels := meters.Client{Secure: l.secure, ID: l.client}.Labels().With(meters.Target(l.dst)).
		With(meters.Allowed(string(in.DefaultPolicy), l.dst))
	if in.AuthorityLabels {
		labels["authority"] = l.name
	}
	return labels
}

// tapOptions returns the labels of l in tap.
func tapOptions(l logicalKey) []tap.Option {
	source := map[string]string{"tls": "no_tls_from_remote"}
	if l.secure {
		source["tls"] = "true"
		if l.client != "" {
			source["client_id"] = l.client
		}
	}
	return []tap.Option{tap.Inbound, tap.WithSourceLabels(source), application(l.dst)}
}

// application returns the labels of a port of the application in tap.
func application(dst netip.AddrPort) tap.Option {
	return tap.WithDestination(dst, map[string]string{"tls": "loopback"})
}
