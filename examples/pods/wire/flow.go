package wire

import (
	"io"
	"net/netip"
	"slices"
)

// Flow contains the bytes in one direction of a TCP connection.
type Flow struct {
	From, To netip.AddrPort
	Data     []byte // bytes in order, up to the first byte that was not captured
	Lost     bool   // at least one byte was not captured, although later bytes were
}

// Read returns the flows in r, a tcpdump capture in libpcap format with Ethernet frames, in the
// order of their first segments. If a connection was made before the capture began, its flows
// contain only the bytes from then on.
func Read(r io.Reader) ([]Flow, error) {
	type pair struct{ from, to netip.AddrPort }
	var all []*assembly
	latest := map[pair]*assembly{}
	err := frames(r, func(frame []byte) {
		s, ok := tcp(frame)
		if !ok {
			return
		}
		key := pair{s.from, s.to}
		a := latest[key]
		if a == nil || s.syn && s.seq+1 != a.first {
			a = &assembly{Flow: Flow{From: s.from, To: s.to}, first: s.seq}
			if s.syn {
				a.first++
			}
			latest[key] = a
			all = append(all, a)
		}
		a.add(s)
	})
	flows := make([]Flow, len(all))
	for i, a := range all {
		flows[i] = a.flow()
	}
	return flows, err
}

// assembly collects the segments of one flow and puts them into order.
type assembly struct {
	Flow

	first uint32 // sequence number of the first byte
	parts []part
}

// part is one segment's data.
type part struct {
	at   int64 // offset of its first byte in the flow
	data []byte
}

// add adds the segment s to the flow.
func (a *assembly) add(s segment) {
	if len(s.data) == 0 {
		return
	}
	// The distance from the last segment is small, so the number may wrap.
	end := int64(0)
	if n := len(a.parts); n > 0 {
		last := a.parts[n-1]
		end = last.at + int64(len(last.data))
	}
	offset := end + int64(int32(s.seq-a.first-uint32(end)))
	a.parts = append(a.parts, part{offset, slices.Clone(s.data)})
}

// flow returns the collected flow, without retransmissions. It ends before the first gap in
// the captured bytes.
func (a *assembly) flow() Flow {
	slices.SortStableFunc(a.parts, func(x, y part) int { return int(x.at - y.at) })
	f := a.Flow
	for _, p := range a.parts {
		end := int64(len(f.Data))
		switch {
		case p.at > end:
			f.Lost = true
			return f
		case p.at+int64(len(p.data)) > end && p.at >= 0:
			f.Data = append(f.Data, p.data[end-p.at:]...)
		}
	}
	return f
}
