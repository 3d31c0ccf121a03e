package tap

import (
	"context"
	"net/netip"
)

// Early is what a [layer.Access] may have besides, where a response goes out
// before Call returns it, as that of a handler does: httplayer.Access has it,
// for what stands in a Middleware, and grpclayer.Access for the streams of a
// server. It is asked for requests that somebody watches.
type Early[Req, Rsp any] interface {
	// Early is called before Call. It arranges for begun to be called once,
	// when the response begins, and for data after n bytes of its body, with
	// these or, where they are not at hand, nil; both in the time of Call, and
	// neither where Call returns before anything goes out.
	Early(ctx context.Context, req Req, begun func(Rsp), data func(n int, p []byte))
}

// Late is what a [layer.Access] may have besides, where Call returns a response
// that has not begun: grpclayer.Access has it, for the streams of a client.
type Late[Rsp any] interface {
	// Late is called before Complete. It has begun called once, when rsp begins
	// and before its end, or not at all if it ends before. It returns false if
	// rsp has begun.
	Late(rsp Rsp, begun func()) bool
}

// Answering is what a [layer.Access] may have besides, where an error may be an
// answer: grpclayer.Access has it, since a call that fails has a status, and
// mostly one that the other side gave it.
type Answering[Req, Rsp any] interface {
	// Answer returns the response that err stands for: an error of Call, or one
	// that ended a response. It returns false where the other side did not
	// answer.
	Answer(ctx context.Context, req Req, err error) (Rsp, bool)
}

// Located is what a [layer.Access] may have besides, to say where a request
// goes if the [Layer] was not told, by [Destination]: httplayer.Access and
// grpclayer.Access have it.
type Located[Req any] interface {
	// Located returns the address that the request came to, or that it says it
	// goes to; not valid if that is not known.
	Located(ctx context.Context, req Req) netip.AddrPort
}
