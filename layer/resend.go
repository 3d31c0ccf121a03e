package layer

import "time"

// Replayer is what the layers that send a request more than once ([Retry],
// [Hedge]) ask of a protocol. The default knows requests and responses that
// are pointers to structs with a field Body of type [io.ReadCloser]; of
// anything else it says that it may be sent as it is, any number of times.
//
// One may have more methods than these: those of [TrailerPeeker], and Outline(rsp Rsp)
// string, by which an [Explanation] names a response in a few words.
type Replayer[Req, Rsp any] interface {
	// Idempotent reports whether sending req twice has the effect of sending
	// it once.
	Idempotent(req Req) bool

	// Replay makes req ready to be read more than once, keeping up to limit
	// bytes of its body. It returns nil where req can be sent as it is any
	// number of times, because it has no body. It reads nothing yet.
	Replay(req Req, limit int64) Replay[Req]

	// After returns how long rsp, or the error that came in its place, asks to
	// wait before the request is sent again; false if it does not say. Less
	// than 0 asks not to send it again at all.
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)

	// Discard gives a response up: what is left of it, up to a small amount,
	// is read so that its connection can be used again, and it is closed.
	Drain(rsp Rsp)
}

// Replay is one request that may be sent several times. Its methods are safe
// for concurrent use.
type Replay[Req any] interface {
	// Next returns the request for one more try, with a body of its own that
	// starts at the beginning; false when that can no longer be given: the
	// body turned out larger than the limit, or reading it failed.
	Next() (Req, bool)

	// End says that no more tries will come. What is being sent goes on; what
	// was kept is let go as soon as it was.
	End()
}

// WithReplayer tells a stack how its protocol sends a request more than once.
func WithReplayer[Req, Rsp any](r Replayer[Req, Rsp]) Option[Rsp] {
	check(r != nil, "WithReplayer: nil Resend")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.resend = r })
}
