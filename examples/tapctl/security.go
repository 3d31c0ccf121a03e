package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/gotower/gotower/examples/tapctl/trust"
)

// security holds the TLS flags, which all commands accept.
type security struct {
	files      trust.Files
	serverName string
	identities []string // NAME for all targets, or TARGET=NAME for one
}

// flags defines the flags in f. They are the same for all commands.
func (s *security) flags(f *flag.FlagSet) {
	f.StringVar(&s.files.Anchors, "cacert", "", "TLS: PEM `file` of trust anchors; default: those of the system")
	f.StringVar(&s.files.Cert, "cert", "", "TLS: PEM `file` of the client certificate and its chain")
	f.StringVar(&s.files.Key, "key", "", "TLS: PEM `file` of the key, if it is not in --cert")
	f.StringVar(&s.serverName, "servername", "",
		"TLS: server `name` (SNI); verified unless --server-identity is set; default: the identity or host of the target")
	f.Func("server-identity",
		"TLS: expected server `name`, DNS-like or spiffe://…, or target=name for one target; "+
			"may be repeated; default: --servername or the host",
		func(name string) error {
			s.identities = append(s.identities, name)
			return nil
		})
}

// given reports whether at least one flag for TLS is set.
func (s *security) given() bool {
	return s.files != trust.Files{} || s.serverName != "" || len(s.identities) > 0
}

// target is a process to which tapctl connects.
type target struct {
	name string // name on the command line
	addr string // host:port
	tls  bool   // connect with TLS

	proof *trust.Credentials // credentials for TLS; nil means cleartext
}

// targets parses the targets on the command line. host:port uses TLS if a TLS flag is set.
// https://host:port always uses TLS, and http://host:port never does. Duplicates are
// removed. targets returns an error if a target or a TLS flag is invalid.
func (s *security) targets(written []string) ([]target, error) {
	targets := make([]target, 0, len(written))
	for i, name := range written {
		// The same target twice would show each request twice.
		if slices.Contains(written[:i], name) {
			continue
		}
		// plain and secure tell which scheme was written, if any.
		addr, plain := strings.CutPrefix(name, "http://")
		addr, secure := strings.CutPrefix(addr, "https://")
		_, port, err := net.SplitHostPort(addr)
		if err != nil || !isPort(port) {
			return nil, fmt.Errorf("%q is not a target: must be host:port", name)
		}
		targets = append(targets, target{name: name, addr: addr, tls: secure || !plain && s.given()})
	}
	return targets, s.check(targets)
}

// isPort reports whether s is a port number from 1 to 65535, or a service name with a port
// number, such as https.
func isPort(s string) bool {
	n, err := new(net.Resolver).LookupPort(context.Background(), "tcp", s) // without network access
	return err == nil && n > 0
}

// check returns the first mistake in the TLS flags, for a command with these targets. It does not
// read the files yet.
func (s *security) check(targets []target) error {
	// First the values themselves, and then what they mean for each target.
	for _, i := range s.identities {
		namespace, name := cutIdentity(i)
		switch {
		case name == "":
			return fmt.Errorf("--server-identity %q must be NAME or TARGET=NAME", i)
		case namespace != "" && !slices.ContainsFunc(targets, func(t target) bool { return t.tls && t.named(namespace) }):
			return fmt.Errorf("--server-identity %s: %s is not a target with TLS", i, namespace)
		}
	}
	for _, t := range targets {
		if !t.tls {
			continue
		}
		// Values are checked for each target, because several may apply to one.
		forAll, forOne := s.identitiesOf(t)
		for _, names := range [][]string{forAll, forOne} {
			if len(names) > 1 {
				return fmt.Errorf("--server-identity: there can be one for all targets, and one for each; %s has %s",
					t.name, strings.Join(names, " and "))
			}
		}
		if err := s.files.Check(s.server(t)); err != nil {
			return err
		}
	}
	return nil
}

// cutIdentity splits a value of --server-identity. namespace is the target to which it applies, or "" for all.
func cutIdentity(s string) (namespace, name string) {
	namespace, name, ok := strings.Cut(s, "=")
	if !ok {
		return "", s
	}
	return namespace, name
}

func (t target) named(s string) bool { return s == t.name || s == t.addr }

// identitiesOf returns the values of --server-identity that apply to t. A value without a
// target's name applies to all targets, and goes to forAll; one with t's name goes to forOne.
func (s *security) identitiesOf(t target) (forAll, forOne []string) {
	for _, i := range s.identities {
		switch namespace, name := cutIdentity(i); {
		case namespace == "":
			forAll = append(forAll, name)
		case t.named(namespace):
			forOne = append(forOne, name)
		}
	}
	return forAll, forOne
}

// prove reads the certificate files that the flags name, and sets credentials on each target that
// uses TLS.
func (s *security) prove(targets []target) error {
	for i := range targets {
		// A pointer, so that the proof is stored in the slice.
		t := &targets[i]
		if !t.tls {
			continue
		}
		proof, err := trust.New(s.files, s.server(*t))
		if err != nil {
			return err
		}
		t.proof = proof
	}
	return nil
}

// server returns the names that the server at t must prove by its certificate.
func (s *security) server(t target) trust.Server {
	server := trust.Server{Name: s.serverName}
	forAll, forOne := s.identitiesOf(t)
	for _, name := range append(forAll, forOne...) {
		server.Identity = name // a name for t only comes after the names for all
	}
	// A DNS-like identity is also the server name. Otherwise, the host is.
	if server.Identity == "" || strings.Contains(server.Identity, "://") {
		host, _, _ := net.SplitHostPort(t.addr)
		server.Name = cmp.Or(server.Name, host, "localhost")
	}
	return server
}
