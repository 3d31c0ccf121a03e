package profiles

import "fmt"

// Mirror sends copies of requests to another target, and drops what that
// answers. The requests themselves never wait for their copies, nor fail with
// them; see [layer.Mirror] for which requests are copied, and when.
//
// A fault does not keep a request from being copied, unless it leaves its body
// unread: the mirror stands in for the targets too.
//
// Copies are forwarded as the requests are, with the Route's RequestHeader, and
// one field beside that, [MirrorHeader]. Each may take 10 s. All header fields
// are in them, those by which users are known, too, unless RequestHeader removes
// them. The target should be one that gets no requests of its own, or the two
// share its queue and its limits.
type Mirror struct {
	Authority    string  // as that of a Target
	Fraction     float64 // of the requests, above 0 to 1; 0 is all of them
	MaxBodyBytes int64   // requests with larger bodies are not copied; 0 is 64 KiB, -1 those without one only
	MaxInFlight  int     // copies at a time, what is beyond is not sent; 0 is 100
}

// MirrorHeader is the header field that tells a copy from a request: its value
// is the target that the request was for. (Envoy changes the host instead, which
// other virtual hosts are then found by.)
//
// A request that has it is not copied, so that two targets that mirror each
// other do not do so without end. Nothing keeps a client from sending it: a
// gateway should take it out of what comes from outside if a target trusts it.
const MirrorHeader = "Mirrored-From"

// Validate says why a Router would leave the mirror out, or returns nil.
func (m Mirror) Validate() error {
	if err := (Target{Authority: m.Authority}).Validate(); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	switch {
	case !(m.Fraction >= 0 && m.Fraction <= 1):
		return fmt.Errorf("mirror %q: share %v is not above 0 to 1, or 0 for all", m.Authority, m.Fraction)
	case m.MaxBodyBytes < -1:
		return fmt.Errorf("mirror %q: body %d is below -1", m.Authority, m.MaxBodyBytes)
	case m.MaxInFlight < 0:
		return fmt.Errorf("mirror %q: in flight %d is below 0", m.Authority, m.MaxInFlight)
	}
	return nil
}
