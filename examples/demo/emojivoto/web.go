package emojivoto

import (
	"context"
	"encoding/json"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// NewWeb returns the web front's handler. It calls the emoji service and the voting service over
// the connections emoji and voting, and responds in JSON:
//
//	GET /api/list                      [{"shortcode", "unicode"}, …]
//	GET /api/vote?choice=:rocket:      {"shortcode", "unicode"}
//	GET /api/leaderboard               [{"shortcode", "unicode", "votes"}, …], most votes first
//
// An error is {"error", "code"} with the gRPC code's name. Its status is 400 without a choice,
// 404 for an unknown choice, and 500 for other service failures. The caller closes the
// connections.
func NewWeb(emoji, voting grpc.ClientConnInterface) http.Handler {
	w := &web{emoji: emoji, voting: voting}
	mux := http.NewServeMux()
	mux.Handle("GET /api/list", answer(w.list))
	mux.Handle("GET /api/vote", answer(w.vote))
	mux.Handle("GET /api/leaderboard", answer(w.leaderboard))
	return mux
}

// web contains the connections to the services.
type web struct {
	emoji, voting grpc.ClientConnInterface
}

// list returns all emoji.
func (w *web) list(r *http.Request) (any, error) {
	emoji, err := w.listAll(r.Context())
	return emoji.AsSlice(), err
}

// vote finds the chosen emoji and votes for it.
func (w *web) vote(r *http.Request) (any, error) {
	shortcode := r.FormValue("choice")
	if shortcode == "" {
		return nil, status.Error(codes.InvalidArgument, "choice is missing")
	}
	unicode := newString()
	// An unknown choice ends here with NotFound, because the voting service has no method for it.
	if err := call(r.Context(), w.emoji, EmojiService, "FindByShortcode", wrapperspb.String(shortcode), unicode); err != nil {
		return nil, err
	}
	if err := call(r.Context(), w.voting, VotingService, VoteMethod(shortcode), newEmpty(), newEmpty()); err != nil {
		return nil, err
	}
	return map[string]string{"shortcode": shortcode, "unicode": unicode.GetValue()}, nil
}

// leaderboard returns the emoji with votes.
func (w *web) leaderboard(r *http.Request) (any, error) {
	results := &structpb.ListValue{}
	if err := call(r.Context(), w.voting, VotingService, "Results", newEmpty(), results); err != nil {
		return nil, err
	}
	emoji, err := w.listAll(r.Context())
	if err != nil {
		return nil, err
	}
	// The voting service only knows shortcodes, so the emoji come from the other service.
	unicode := make(map[string]*structpb.Value)
	for _, e := range emoji.GetValues() {
		fields := e.GetStructValue().GetFields()
		unicode[fields["shortcode"].GetStringValue()] = fields["unicode"]
	}
	for _, result := range results.GetValues() {
		fields := result.GetStructValue().GetFields()
		// The field is added to the voting service's response.
		fields["unicode"] = unicode[fields["shortcode"].GetStringValue()]
	}
	return results.AsSlice(), nil
}

// listAll calls the emoji service's method ListAll.
func (w *web) listAll(ctx context.Context) (*structpb.ListValue, error) {
	list := &structpb.ListValue{}
	return list, call(ctx, w.emoji, EmojiService, "ListAll", newEmpty(), list)
}

// call sends req to a method of a service and stores the response in rsp. The text of an error
// begins with the method's name.
func call(ctx context.Context, conn grpc.ClientConnInterface, service, method string, req, rsp proto.Message) error {
	if err := conn.Invoke(ctx, fullMethod(service, method), req, rsp); err != nil {
		// The code stays the same, because it determines the HTTP status.
		return status.Errorf(status.Code(err), "%s: %s", method, status.Convert(err).Message())
	}
	return nil
}

// answer returns a handler that writes page's result or error as JSON.
func answer(page func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := page(r)
		rw.Header().Set("Content-Type", "application/json")
		// The body is the error instead of the result.
		if err != nil {
			st := status.Convert(err)
			rw.WriteHeader(httpStatus(st.Code()))
			body = map[string]string{"error": st.Message(), "code": st.Code().String()}
		}
		// An error means that the client has closed the connection.
		_ = json.NewEncoder(rw).Encode(body)
	})
}

// httpStatus returns the HTTP status for the code of a failed call.
func httpStatus(code codes.Code) int {
	switch code {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
