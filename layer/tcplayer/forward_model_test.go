package tcplayer

import (
	"bytes"
	"io"
	"net"
	"testing"

	"pgregory.net/rapid"
)

// For any order of operations, each side receives a prefix of the bytes sent by
// the other, or all of them after a clean end. The connection ends once.
func TestForwardModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var opts []ForwardOption
		if rapid.Bool().Draw(rt, "idle") {
			opts = append(opts, inProcess())
		}
		j := join(t, t.Context(), opts...)
		sides := [2]*side{newSide(j.client), newSide(j.server)}
		broke, unseen := false, true // unseen: only by sides that had ended their direction
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			s := sides[rapid.IntRange(0, 1).Draw(rt, "side")]
			switch rapid.SampledFrom([]string{"write", "write", "write", "end", "reset"}).Draw(rt, "step") {
			case "write":
				if !s.ended && !broke {
					p := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(rt, "what"))}, rapid.IntRange(1, 9000).Draw(rt, "length"))
					n, _ := s.conn.Write(p)
					s.sent = append(s.sent, p[:n]...)
				}
			case "end":
				s.ended = true
				s.conn.CloseWrite()
			case "reset":
				broke, unseen = true, unseen && s.ended
				reset(s.conn)
			}
		}
		for _, s := range sides {
			s.conn.CloseWrite()
		}
		got := [2][]byte{<-sides[0].got, <-sides[1].got}
		err := <-j.done
		if err != nil && !broke || err == nil && !unseen {
			rt.Fatalf("reset %v, after its end %v, error %v", broke, unseen, err)
		}
		for i := range sides {
			sent := sides[1-i].sent
			if !bytes.HasPrefix(sent, got[i]) || !broke && len(sent) != len(got[i]) {
				rt.Fatalf("side %d got %d bytes of %d, reset %v", i, len(got[i]), len(sent), broke)
			}
		}
		if n := len(j.holds.ended()); n != 1 {
			rt.Fatalf("ended %d times", n)
		}
		j.client.Close()
		j.server.Close()
	})
}

// side is one of the two connections.
type side struct {
	conn  *net.TCPConn
	sent  []byte
	ended bool
	got   chan []byte
}

func newSide(conn *net.TCPConn) *side {
	s := &side{conn: conn, got: make(chan []byte, 1)}
	go func() {
		all, _ := io.ReadAll(conn)
		s.got <- all
	}()
	return s
}
