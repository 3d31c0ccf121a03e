package message

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
)

// Informer sends informational (1xx) responses to the client of a request.
type Informer interface {
	Inform(status int, header http.Header) error
}

type informerKey struct{}

// InformerKey is the context key under which the context of a received request has its
// [Informer].
var InformerKey any = informerKey{}

// Inform forwards a 1xx response that an upstream sent for a request with the context ctx.
// If ctx has an [httptrace.ClientTrace] with Got1xxResponse, that function receives the
// response. Otherwise the [Informer] of ctx receives it, if ctx has one.
func Inform(ctx context.Context, status int, header http.Header) error {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(status, textproto.MIMEHeader(header))
	}
	if to, ok := ctx.Value(InformerKey).(Informer); ok {
		return to.Inform(status, header)
	}
	return nil
}
