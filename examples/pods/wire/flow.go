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
	// Both directions of a connection are separate flows.
	type pair struct{ from, to netip.AddrPort }
	// all contains the flows in order, and latest the last one between two addresses.
	var all []*assembly
	latest := map[pair]*assembly{}
	err := frames(r, func(frame []byte) {
		s, ok := tcp(frame)
		if !ok {
			return
		}
		key := pair{s.from, s.to}
		a := latest[key]
		// A SYN with another number begins a new connection between the same addresses. The same number is a
		// retransmission.
		if a == nil || s.syn && s.seq+1 != a.first {
			a = &assembly{Flow: Flow{From: s.from, To: s.to}, first: s.seq}
			// The SYN itself takes one number, before the first byte.
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
	// If the capture is damaged, the flows up to there are returned with the error.
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
	// A segment without data, such as an acknowledgement, adds nothing.
	if len(s.data) == 0 {
		return
	}
	// The distance from the last segment is small, so the number may wrap.
	end := int64(0)
	if n := len(a.parts); n > 0 {
		last := a.parts[n-1]
		end = last.at + int64(len(last.data))
	}
	// Sequence numbers have 32 bits and wrap, and a retransmission is before end. So the signed difference counts.
	offset := end + int64(int32(s.seq-a.first-uint32(end)))
	// The frame is only valid during the call.
	a.parts = append(a.parts, part{offset, slices.Clone(s.data)})
}

// flow returns the collected flow, without retransmissions. It ends before the first gap in
// the captured bytes.
func (a *assembly) flow() Flow {
	// Segments may arrive out of order, and retransmissions are sorted next to the originals.
	slices.SortStableFunc(a.parts, func(x, y part) int { return int(x.at - y.at) })
	f := a.Flow
	for _, p := range a.parts {
		end := int64(len(f.Data))
		switch {
		// A segment is missing between them.
		case p.at > end:
			f.Lost = true
			return f
		// A part that is a retransmission only adds the bytes that are new.
		case p.at+int64(len(p.data)) > end && p.at >= 0:
			f.Data = append(f.Data, p.data[end-p.at:]...)
		}
	}
	return f
}
