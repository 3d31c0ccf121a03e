package controller

import (
	"maps"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/proto"
)

// snapshot returns the first message on a Get stream: all endpoints, or none.
func (e *entry) snapshot() *pb.Update {
	if e.exists() && len(e.endpoints) > 0 {
		return e.add(e.endpoints)
	}
	return noEndpoints(e.exists())
}

// difference returns the messages that take a client from old to e. Endpoints are added before
// others are removed, so that the client always knows at least one.
func (e *entry) difference(old *entry) []*pb.Update {
	// The order matters: each case excludes the ones below. First those in which a client knows no endpoints any
	// more.
	switch {
	case !e.exists() && !old.exists():
		return nil
	case !e.exists():
		return []*pb.Update{noEndpoints(false)} // and no such name
	// The client already knows that the name exists without endpoints.
	case len(e.endpoints) == 0 && old.exists() && len(old.endpoints) == 0:
		return nil
	// Either nothing is left, or the client knows nothing yet, so it gets everything.
	case len(e.endpoints) == 0 || !old.exists():
		return []*pb.Update{e.snapshot()}
	}
	var updates []*pb.Update
	if changed := e.changedSince(old); len(changed) > 0 {
		updates = append(updates, e.add(changed))
	}
	if gone := e.removedSince(old); len(gone) > 0 {
		updates = append(updates, &pb.Update{Update: &pb.Update_Remove{Remove: &pb.AddrSet{Addrs: gone}}})
	}
	return updates
}

// changedSince returns the endpoints that are new in e or differ from old. If the destination's
// labels have changed, this is every endpoint, because clients merge these labels into each
// endpoint's own.
func (e *entry) changedSince(old *entry) []netip.AddrPort {
	// The labels are part of every message with endpoints.
	if !maps.Equal(e.labels, old.labels) {
		return e.endpoints
	}
	var changed []netip.AddrPort
	for _, addr := range e.endpoints {
		if was := old.byAddr[addr]; was == nil || !proto.Equal(was, e.byAddr[addr]) {
			changed = append(changed, addr)
		}
	}
	return changed
}

// removedSince returns the addresses that are in old but no longer in e.
func (e *entry) removedSince(old *entry) []*apinet.TcpAddress {
	var gone []*apinet.TcpAddress
	for _, addr := range old.endpoints {
		if e.byAddr[addr] == nil {
			// Clients identify the endpoint by the message's address.
			gone = append(gone, old.byAddr[addr].GetAddr())
		}
	}
	return gone
}

// add returns a message that adds the endpoints at addrs, with the destination's labels.
func (e *entry) add(addrs []netip.AddrPort) *pb.Update {
	set := &pb.WeightedAddrSet{MetricLabels: e.labels, Addrs: make([]*pb.WeightedAddr, 0, len(addrs))}
	for _, addr := range addrs {
		set.Addrs = append(set.Addrs, e.byAddr[addr])
	}
	return &pb.Update{Update: &pb.Update_Add{Add: set}}
}

// noEndpoints returns a message that removes all endpoints. exists tells the client whether the
// name exists at all.
func noEndpoints(exists bool) *pb.Update {
	return &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: exists}}}
}
