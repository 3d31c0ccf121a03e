package inbound

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"unique"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// logicalKey has the properties by which inbound requests are counted. The requests with
// equal keys have one service, which counts them. This service is in a cache, by the key.
type logicalKey struct {
	permit unique.Handle[meters.Permit] // the rule that permitted the request
	dst    netip.AddrPort               // port of the application
	name   string                       // name:port that the client requested; "": not counted by name
	secure bool
	client string // identity of the client, or ""
}

// canonicalHeader is the header in which the proxy of the client sends the name of the
// service for which it balanced the request.
const canonicalHeader = "L5d-Dst-Canonical"

// logicalKey returns the key of req. It does not set the field permit, which the caller
// adds. The name in the key is the value of canonicalHeader, or else the authority or Host.
// An IP address is not used as a name. The name is "" if [Inbound.counts] returns false.
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

// counts reports whether requests to name are counted separately from requests to other
// names. If AuthorityLabels is set, the result is true for every name. Otherwise it is true
// if ProfileSuffixes contains the host in name.
func (in *Inbound) counts(name string) bool {
	host, _, _ := strings.Cut(name, ":")
	return in.AuthorityLabels || in.Control.ProfileSuffixes.Contains(host)
}

// nameOf returns authority as name:port. It returns "" if the authority is an IP address or
// invalid. The default port is 80.
func nameOf(authority string) string {
	host, port, ok := strings.Cut(authority, ":") // an IPv6 address results in an invalid host
	if !ok {
		port = "80"
	}
	host = strings.TrimSuffix(host, ".")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || (tcplayer.TransportHeader{Port: uint16(n), Name: host}).Validate() != nil || host == "" {
		return ""
	}
	return strings.ToLower(host) + ":" + strconv.FormatUint(n, 10)
}

// labels returns the metric labels of the requests with the key l. The name in l becomes a
// label only if AuthorityLabels is set, because clients choose the name.
func (in *Inbound) labels(l logicalKey) meters.Labels {
	labels := meters.Client{Secure: l.secure, ID: l.client}.Labels().With(meters.Target(l.dst)).
		With(l.permit.Value().Labels(l.dst))
	if in.AuthorityLabels {
		labels["authority"] = l.name
	}
	return labels
}

// tapOptions returns the options that label the requests with the key l in tap.
func tapOptions(l logicalKey) []tap.Option {
	permit := l.permit.Value()
	return []tap.Option{
		tap.Inbound, tap.WithSourceLabels(sourceLabels(l.secure, l.client)), tap.WithDestination(l.dst, destinationLabels(&permit)),
	}
}

// sourceLabels returns the labels of a client in tap. secure is true for a client with TLS, and
// id is its identity or "".
func sourceLabels(secure bool, id string) map[string]string {
	if !secure {
		return map[string]string{"tls": "no_tls_from_remote"}
	}
	labels := map[string]string{"tls": "true"}
	if id != "" {
		labels["client_id"] = id
	}
	return labels
}

// destinationLabels returns the labels of the application in tap, for requests on which the
// resources in permit decide.
func destinationLabels(permit *meters.Permit) map[string]string {
	labels := permit.Labels(netip.AddrPort{})
	labels["tls"] = "loopback"
	return labels
}
