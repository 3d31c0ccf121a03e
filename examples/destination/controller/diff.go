package controller

import (
	"maps"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/proto"
)

// snapshot is the first message of a Get stream, with all endpoints.
func (e *entry) snapshot() *pb.Update {
	if e.exists() && len(e.endpoints) > 0 {
		return e.add(e.endpoints)
	}
	return noEndpoints(e.exists())
}

// difference returns the messages that change old to e. Additions come before removals, so
// that a client's set is not empty in between.
func (e *entry) difference(old *entry) []*pb.Update {
	switch {
	case !e.exists() && !old.exists():
		return nil
	case !e.exists():
		return []*pb.Update{noEndpoints(false)}
	case len(e.endpoints) == 0 && old.exists() && len(old.endpoints) == 0:
		return nil
	case len(e.endpoints) == 0 || !old.exists():
		return []*pb.Update{e.snapshot()}
	}
	var updates []*pb.Update
	if changed := e.changedSince(old); len(changed) > 0 {
		updates = append(updates, e.add(changed))
	}
	if gone := e.goneSince(old); len(gone) > 0 {
		updates = append(updates, &pb.Update{Update: &pb.Update_Remove{Remove: &pb.AddrSet{Addrs: gone}}})
	}
	return updates
}

// changedSince returns the endpoints that are new or changed. If the labels of the set
// changed, that is all endpoints, because clients merge these labels into those of
// endpoints.
func (e *entry) changedSince(old *entry) []netip.AddrPort {
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

// goneSince returns the addresses that were removed.
func (e *entry) goneSince(old *entry) []*apinet.TcpAddress {
	var gone []*apinet.TcpAddress
	for _, addr := range old.endpoints {
		if e.byAddr[addr] == nil {
			gone = append(gone, old.byAddr[addr].GetAddr())
		}
	}
	return gone
}

// add returns a message that adds endpoints, with the labels of the set.
func (e *entry) add(addrs []netip.AddrPort) *pb.Update {
	set := &pb.WeightedAddrSet{MetricLabels: e.labels, Addrs: make([]*pb.WeightedAddr, 0, len(addrs))}
	for _, addr := range addrs {
		set.Addrs = append(set.Addrs, e.byAddr[addr])
	}
	return &pb.Update{Update: &pb.Update_Add{Add: set}}
}

func noEndpoints(exists bool) *pb.Update {
	return &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: exists}}}
}
