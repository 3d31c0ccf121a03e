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

// security is how targets prove who they are, and how we do.
type security struct {
	files      trust.Files
	serverName string
	identities []string // of all targets, or, with target= before it, of one
}

func (s *security) flags(f *flag.FlagSet) {
	f.StringVar(&s.files.Anchors, "cacert", "", "TLS: `file` of PEM that vouches for servers; those of the system if not given")
	f.StringVar(&s.files.Cert, "cert", "", "TLS: `file` of PEM with the certificate to show, and those that vouch for it")
	f.StringVar(&s.files.Key, "key", "", "TLS: `file` of PEM with its key, if that is not in --cert")
	f.StringVar(&s.serverName, "servername", "",
		"TLS: `name` to ask for, in place of the identity or the host of the target; targets prove it if there is no --server-identity")
	f.Func("server-identity",
		"TLS: `name` that targets prove, DNS-like or spiffe://…, or target=name for one; may be repeated; else --servername, or the host",
		func(name string) error {
			s.identities = append(s.identities, name)
			return nil
		})
}

// given reports whether there is a flag that is of use with TLS alone.
func (s *security) given() bool {
	return s.files != trust.Files{} || s.serverName != "" || len(s.identities) > 0
}

// target is a process to be asked.
type target struct {
	name string // as it was written
	addr string // host:port
	tls  bool

	proof *trust.Credentials // nil: in clear
}

// targets reads what was written: host:port, by TLS if there is a flag for it;
// https://host:port and http://host:port whatever the flags are. One that is
// written twice is one: else it would be counted twice.
func (s *security) targets(written []string) ([]target, error) {
	all := make([]target, 0, len(written))
	for i, name := range written {
		if slices.Contains(written[:i], name) {
			continue
		}
		addr, plain := strings.CutPrefix(name, "http://")
		addr, secure := strings.CutPrefix(addr, "https://")
		_, port, err := net.SplitHostPort(addr)
		if err != nil || !isPort(port) {
			return nil, fmt.Errorf("%q is no target: write host:port", name)
		}
		all = append(all, target{name: name, addr: addr, tls: secure || !plain && s.given()})
	}
	return all, s.check(all)
}

// isPort reports whether s is the number of a port, or the name of one.
func isPort(s string) bool {
	n, err := new(net.Resolver).LookupPort(context.Background(), "tcp", s) // which asks nobody elsewhere
	return err == nil && n > 0
}

// check returns what is wrong with the flags, whatever is in the files.
func (s *security) check(all []target) error {
	for _, i := range s.identities {
		of, name := cutIdentity(i)
		switch {
		case name == "":
			return fmt.Errorf("--server-identity %q must be NAME or TARGET=NAME", i)
		case of != "" && !slices.ContainsFunc(all, func(t target) bool { return t.tls && t.named(of) }):
			return fmt.Errorf("--server-identity %s: %s is none of the targets by TLS", i, of)
		}
	}
	for _, t := range all {
		if !t.tls {
			continue
		}
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

func cutIdentity(s string) (of, name string) {
	of, name, ok := strings.Cut(s, "=")
	if !ok {
		return "", s
	}
	return of, name
}

func (t target) named(s string) bool { return s == t.name || s == t.addr }

// identitiesOf are the names that were given for all targets, and for t.
func (s *security) identitiesOf(t target) (forAll, forOne []string) {
	for _, i := range s.identities {
		switch of, name := cutIdentity(i); {
		case of == "":
			forAll = append(forAll, name)
		case t.named(of):
			forOne = append(forOne, name)
		}
	}
	return forAll, forOne
}

// prove reads the files, for those of the targets that are by TLS.
func (s *security) prove(all []target) error {
	for i := range all {
		t := &all[i]
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

// server is who has to be at t.
func (s *security) server(t target) trust.Server {
	server := trust.Server{Name: s.serverName}
	forAll, forOne := s.identitiesOf(t)
	for _, name := range append(forAll, forOne...) {
		server.Identity = name // that of t alone is the last
	}
	if server.Identity == "" || strings.Contains(server.Identity, "://") {
		host, _, _ := net.SplitHostPort(t.addr)
		server.Name = cmp.Or(server.Name, host, "localhost")
	}
	return server
}
