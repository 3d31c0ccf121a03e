package controller

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Error is a mistake in a configuration. Its fields say where: File, Line, Column and Field, with
// the Value and the Reason. The file is empty for a configuration that was made in Go.
type Error = yamlfile.Error

// Parse parses data, the contents of a YAML file. Errors refer to the file as name. The error
// joins an [*Error] for each mistake, in line order. After a YAML syntax error, nothing else is
// checked.
//
// Unknown fields and protocols, duplicate values and a second YAML document are errors. So is an
// empty file, because it is probably still being written. If you want no destinations at all,
// write "destinations: {}".
func Parse(name string, data []byte) (Config, error) {
	// A third document would not change the error.
	const limit = 2
	roots, err := yamlfile.Documents(name, data, limit)
	if err != nil {
		return Config{}, errors.Join(err)
	}
	// An empty file has no node, so mistakes are reported at line 1.
	v := yamlfile.Value{File: yamlfile.NewFile(name, data), Node: &yaml.Node{Line: 1}}
	switch {
	case len(roots) == limit:
		v.Node = roots[1]
		v.Mistakes = append(v.Mistakes, v.Note("a second document: a file is one"))
	case len(roots) == 0 || yamlfile.IsNull(roots[0]) || roots[0].Kind == yaml.MappingNode && len(roots[0].Content) == 0:
		v.Failf(`the file is empty: for no destinations, write "destinations: {}"`)
	default:
		v.Node = roots[0]
		// Resolve follows an alias to the value that it stands for.
		v = v.Resolve()
	}
	var cfg Config
	if len(v.Mistakes) == 0 {
		cfg = parseRoot(v)
	}
	if err := yamlfile.Join(v.Mistakes); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// parseRoot returns the configuration in the document v. It adds the mistakes to v.Mistakes, which
// belongs to the file and not to the copy of v; if there are any, the configuration is incomplete.
func parseRoot(v yamlfile.Value) Config {
	var file fileYAML
	decode(v, &file)
	mistakes := len(v.Mistakes) // those of decode come first
	cfg := Config{
		Destinations:         make(map[string]Destination, len(file.Destinations)),
		DefaultInboundPolicy: file.DefaultPolicy, ClusterNetworks: file.ClusterNetworks,
	}
	for _, s := range file.Servers {
		cfg.Servers = append(cfg.Servers, Server{Workload: s.Workload, Port: s.Port, Policy: s.message(file.ClusterNetworks)})
	}
	checkServers(v.At("servers"), file.Servers)
	// A policy may refer to destinations that come later in the file, so collect them first.
	exists := make(map[target]bool)
	for name, d := range file.Destinations {
		if t, err := parseTarget(name); err == nil && d.Exists {
			exists[t] = true
		}
	}
	for name, d := range file.Destinations {
		t, _ := parseTarget(name) // validate reports the error
		d.Absent = !d.Exists
		if d.Policy != nil {
			d.Destination.Policy = d.Policy.message(t, d.Profile != nil && d.Profile.Opaque, func(host string, port uint16) bool {
				return exists[target{host: host, port: cmp.Or(port, defaultPort)}]
			})
		}
		cfg.Destinations[name] = d.Destination
	}
	// A field that could not be decoded is zero, which the checks since then may report again.
	validate(v, cfg)
	v.Mistakes = slices.Concat(v.Mistakes[:mistakes], without(v.Mistakes[mistakes:], v.Mistakes[:mistakes]))
	return cfg
}

// without drops the mistakes in list whose field, or a field around it, is in earlier. One
// mistake should not be reported twice.
func without(list, earlier []*Error) []*Error {
	return slices.DeleteFunc(slices.Clone(list), func(e *Error) bool {
		return slices.ContainsFunc(earlier, func(before *Error) bool { return strings.HasPrefix(e.Field, before.Field) })
	})
}

// decode fills in target, which points to one of the structs in schema.go, from v.
func decode(v yamlfile.Value, target any) {
	d := yamlfile.Decoder{Empty: true, Parse: parseScalar}
	d.Special = func(v yamlfile.Value, target any) bool {
		// A class has a single field status in the file, but two limits in Go.
		class, ok := target.(*ResponseClass)
		if ok {
			var y classYAML
			d.Decode(v, &y)
			*class = ResponseClass{Min: y.Status.Min, Max: y.Status.Max, Failure: y.Failure}
		}
		return ok
	}
	d.Decode(v, target)
}

// parseScalar returns a function that sets target from a value's text, or nil for types without a
// syntax of their own.
func parseScalar(target any) func(string) error {
	switch v := target.(type) {
	case *netip.AddrPort:
		return func(text string) error {
			addr, err := netip.ParseAddrPort(text)
			if err != nil {
				return errors.New("an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80")
			}
			*v = unmap(addr)
			return nil
		}
	case *netip.Prefix:
		return func(text string) error {
			p, err := netip.ParsePrefix(text)
			// An address is a network with only this address.
			if ip, ipErr := netip.ParseAddr(text); ipErr == nil && ip.Zone() == "" {
				p = netip.PrefixFrom(ip, ip.BitLen())
				err = nil
			}
			if err != nil {
				return errors.New("a network such as 10.0.0.0/8, or an IP address")
			}
			*v = p.Masked()
			return nil
		}
	case *statusRange:
		return func(text string) error {
			lowest, highest, isRange := strings.Cut(text, "-")
			// A single status is a range of one.
			if !isRange {
				highest = lowest
			}
			low, err1 := strconv.ParseUint(strings.TrimSpace(lowest), 10, 32)
			high, err2 := strconv.ParseUint(strings.TrimSpace(highest), 10, 32)
			if err1 != nil || err2 != nil {
				return errors.New("a status such as 404, or a range such as 500-599")
			}
			*v = statusRange{uint32(low), uint32(high)}
			return nil
		}
	}
	return nil
}

// OutboundPolicy converts policy to linkerd's message, for the destination name, a host:port. policy
// is written like the field policy of a destination in the configuration file. If opaque is true,
// connections are forwarded as bytes. exists reports whether policy may refer to a destination; the
// port is 0 if the reference does not have one. The error joins an [*Error] for each mistake.
func OutboundPolicy(
	name string, policy map[string]any, opaque bool, exists func(host string, port uint16) bool,
) (*outbound.OutboundPolicy, error) {
	t, err := parseTarget(name)
	if err != nil {
		return nil, err
	}
	v := yamlfile.Program(policy)
	var y policyYAML
	decode(v, &y)
	return y.message(t, opaque, exists), yamlfile.Join(v.Mistakes)
}

// InboundPolicy converts server to linkerd's message. server is written like an item of the list
// servers in the configuration file. cluster contains the cluster's networks. The error joins an
// [*Error] for each mistake.
func InboundPolicy(server map[string]any, cluster []netip.Prefix) (*inbound.Server, error) {
	v := yamlfile.Program(server)
	var y serverYAML
	decode(v, &y)
	return y.message(cluster), yamlfile.Join(v.Mistakes)
}
