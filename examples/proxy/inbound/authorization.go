package inbound

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/internal/wire"
)

// authorization is a rule in a policy. It permits clients in one of its networks that use TLS, and
// have an identity, as the rule requires.
type authorization struct {
	resource meters.Resource
	networks []network

	tls        bool // the client must use TLS that this proxy terminates
	identity   bool // the client must have one of identities, or an identity with one of suffixes
	identities map[string]struct{}
	suffixes   []string // ".ns.cluster.local"; "" matches every identity
}

// network is an IP network with exceptions.
type network struct {
	net    netip.Prefix
	except []netip.Prefix // parts of net that do not belong to the network
}

// contains reports whether addr is in the network.
func (n network) contains(addr netip.Addr) bool {
	return n.net.Contains(addr) && !slices.ContainsFunc(n.except, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// permits reports whether the rule permits c.
func (a *authorization) permits(c *client) bool {
	if a.tls && !c.secure || a.identity && !a.identifies(c.id) {
		return false
	}
	// The networks are alternatives: one of them is enough.
	for i := range a.networks {
		if a.networks[i].contains(c.addr) {
			return true
		}
	}
	return false
}

// identifies reports whether id is one of the permitted identities or has a permitted suffix. The
// suffix "" permits every identity. Other suffixes permit only identities that look like DNS names,
// and no URIs. An empty id means that the client has no identity.
func (a *authorization) identifies(id string) bool {
	if id == "" {
		return false
	}
	if _, ok := a.identities[id]; ok {
		return true
	}
	// A suffix belongs to DNS names, and must not match the end of a URI.
	isURI := strings.Contains(id, "://")
	for _, suffix := range a.suffixes {
		if suffix == "" || !isURI && strings.HasSuffix(id, suffix) {
			return true
		}
	}
	return false
}

// isAudit reports whether the rule comes from the default policy audit, which permits all clients
// but logs its decisions.
func (a *authorization) isAudit() bool { return a.resource == meters.DefaultResource("audit") }

// allNetworks returns networks that contain every address.
func allNetworks() []network {
	return []network{{net: netip.MustParsePrefix("0.0.0.0/0")}, {net: netip.MustParsePrefix("::/0")}}
}

// localhost returns a rule that permits the addresses 127.0.0.1 and ::1. This
// proxy adds the rule to every policy from a controller, as linkerd's proxy does.
func localhost() authorization {
	return authorization{resource: meters.DefaultResource("localhost"), networks: []network{
		{net: netip.MustParsePrefix("127.0.0.1/32")}, {net: netip.MustParsePrefix("::1/128")},
	}}
}

// authorizationsOf converts msgs to rules, and appends parent. A route's rules are followed by
// those of its server, because a server's rules also apply to its routes. A server has no parent.
func authorizationsOf(msgs []*pb.Authz, parent []authorization) ([]authorization, error) {
	all := make([]authorization, 0, len(msgs)+len(parent))
	for i, msg := range msgs {
		a, err := authorizationOf(msg)
		if err != nil {
			return nil, fmt.Errorf("authorization %d: %w", i+1, err)
		}
		all = append(all, a)
	}
	return append(all, parent...), nil
}

// authorizationOf converts a rule in a message. It returns an error if the rule has no networks or
// no authentication.
func authorizationOf(msg *pb.Authz) (a authorization, err error) {
	if a.resource, err = resourceOf(msg.GetMetadata(), msg.GetLabels(), "serverauthorization"); err != nil {
		return a, err
	}
	if len(msg.GetNetworks()) == 0 {
		return a, errors.New("no networks")
	}
	for _, n := range msg.GetNetworks() {
		var converted network
		if converted.net, err = prefixOf(n.GetNet()); err != nil {
			return a, err
		}
		for _, e := range n.GetExcept() {
			p, err := prefixOf(e)
			if err != nil {
				return a, err
			}
			converted.except = append(converted.except, p)
		}
		a.networks = append(a.networks, converted)
	}
	// The second switch decides what TLS must prove: nothing about the client, or one of the listed identities.
	switch permit := msg.GetAuthentication().GetPermit().(type) {
	case *pb.Authn_Unauthenticated:
		return a, nil
	case *pb.Authn_MeshTLS:
		a.tls = true
		switch clients := permit.MeshTLS.GetClients().(type) {
		case *pb.Authn_PermitMeshTLS_Unauthenticated:
			return a, nil
		case *pb.Authn_PermitMeshTLS_Identities:
			a.identity = true
			a.identities = make(map[string]struct{})
			for _, id := range clients.Identities.GetIdentities() {
				a.identities[id.GetName()] = struct{}{}
			}
			for _, s := range clients.Identities.GetSuffixes() {
				// A suffix without parts matches every identity. Others begin with a dot, so that "ns" does not
				// match "other-ns".
				suffix := ""
				if len(s.GetParts()) > 0 {
					suffix = "." + strings.Join(s.GetParts(), ".")
				}
				a.suffixes = append(a.suffixes, suffix)
			}
			return a, nil
		}
	}
	// A message of a newer controller may contain an unknown form. It is invalid instead of permitting too much.
	return a, errors.New("no authentication")
}

// resourceOf returns the resource that a message describes, such as a server or route. Messages
// without metadata use the labels "group", "kind" and "name" instead. kind is the default for the
// label "kind".
func resourceOf(m *meta.Metadata, labels map[string]string, kind string) (meters.Resource, error) {
	// Newer controllers send metadata. Older ones only send labels, which are read below.
	switch m := m.GetKind().(type) {
	// This resource is a built-in default policy, which is no object in the cluster.
	case *meta.Metadata_Default:
		return meters.DefaultResource(m.Default), nil
	case *meta.Metadata_Resource:
		return meters.Resource{Group: m.Resource.GetGroup(), Kind: m.Resource.GetKind(), Name: m.Resource.GetName()}, nil
	}
	r := meters.Resource{Group: "policy.linkerd.io", Kind: kind, Name: labels["name"]}
	if r.Name == "" {
		return r, errors.New("neither metadata nor a label name")
	}
	if group, ok := labels["group"]; ok {
		r.Group = group
	}
	if labels["kind"] != "" {
		r.Kind = labels["kind"]
	}
	return r, nil
}

// prefixOf converts a network in a message.
func prefixOf(msg *apinet.IPNetwork) (netip.Prefix, error) {
	addr, err := wire.IP(msg.GetIp())
	if err != nil {
		return netip.Prefix{}, err
	}
	p, err := addr.Unmap().Prefix(int(min(msg.GetPrefixLen(), 129))) // 129 is invalid for both versions
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("network: %w", err)
	}
	return p, nil
}
