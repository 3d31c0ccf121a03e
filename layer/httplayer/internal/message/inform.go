package message

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
)

// Informer sends 1xx responses to the client of a request.
type Informer interface {
	Inform(status int, header http.Header) error
}

type informerKey struct{}

// InformerKey is the key of the [Informer] in the context of a request.
var InformerKey any = informerKey{}

// Inform passes on a 1xx response that was received for a request with ctx. An
// [httptrace.ClientTrace] with Got1xxResponse gets it, else the Informer of ctx,
// if there is one.
func Inform(ctx context.Context, status int, header http.Header) error {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(status, textproto.MIMEHeader(header))
	}
	if to, ok := ctx.Value(InformerKey).(Informer); ok {
		return to.Inform(status, header)
	}
	return nil
}
