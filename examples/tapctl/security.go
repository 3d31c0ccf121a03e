package main

import (
	"cmp"
	"errors"
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
	f.StringVar(&s.serverName, "servername", "", "TLS: `name` to ask for, if it is neither the identity nor the host of the target")
	f.Func("server-identity",
		"TLS: `name` that targets prove, DNS-like or spiffe://…, or target=name for one; may be repeated; the host if not given",
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
// https://host:port and http://host:port whatever the flags are.
func (s *security) targets(written []string) ([]target, error) {
	all := make([]target, 0, len(written))
	for _, name := range written {
		addr, plain := strings.CutPrefix(name, "http://")
		addr, secure := strings.CutPrefix(addr, "https://")
		if _, port, err := net.SplitHostPort(addr); err != nil || strings.ContainsAny(port, "/?#") {
			return nil, fmt.Errorf("%q is no target: write host:port", name)
		}
		all = append(all, target{name: name, addr: addr, tls: secure || !plain && s.given()})
	}
	return all, s.check(all)
}

// check returns what is wrong with the flags, whatever is in the files.
func (s *security) check(all []target) error {
	if s.files.Key != "" && s.files.Cert == "" {
		return errors.New("--key needs the certificate that it is the key of: --cert")
	}
	if len(s.identities) > 0 && s.files.Anchors == "" {
		return errors.New("--server-identity needs the certificates of who vouches for it: --cacert")
	}
	seen := map[string]bool{}
	for _, i := range s.identities {
		of, name := cutIdentity(i)
		switch {
		case name == "":
			return fmt.Errorf("--server-identity %q must be NAME or TARGET=NAME", i)
		case seen[of]:
			return fmt.Errorf("--server-identity %s: there can be one for all targets, and one for each", i)
		case of != "" && !slices.ContainsFunc(all, func(t target) bool { return t.tls && t.named(of) }):
			return fmt.Errorf("--server-identity %s: %s is none of the targets by TLS", i, of)
		}
		seen[of] = true
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
	var forAll, forOne string
	for _, i := range s.identities {
		switch of, name := cutIdentity(i); {
		case of == "":
			forAll = name
		case t.named(of):
			forOne = name
		}
	}
	server := trust.Server{Name: s.serverName, Identity: cmp.Or(forOne, forAll)}
	if server.Identity == "" || strings.Contains(server.Identity, "://") {
		host, _, _ := net.SplitHostPort(t.addr)
		server.Name = cmp.Or(server.Name, host, "localhost")
	}
	return server
}
