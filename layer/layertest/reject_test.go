package layertest

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// wrong is a subject with a defect, and the error of the check that finds it.
type wrong struct {
	number  int
	name    string
	subject interface {
		subject() (*subject[*Request, *Response], error)
	}
	want string
}

var oneOf = Service{New: func(context.Context) service { return &gate{free: 1} }}

func wrongs() []wrong {
	return []wrong{
		{1, "looks at ctx first", asking(ctxFirst), "Poll of a ready service"},
		{1, "is always ready", asking(func(service, context.Context) error { return nil }), "Poll of a saturated service: <nil>"},
		{1, "returns ErrClosed without capacity", asking(closedForNow), "Poll of a saturated service: not ready\nclosed, want ErrNotReady"},
		{1, "panics", asking(func(service, context.Context) error { panic("in Ready") }), "it panicked: in Ready"},
		{1, "ends its goroutine", asking(func(service, context.Context) error { runtime.Goexit(); return nil }), "it ended its goroutine"},
		{1, "returns no cause", asking(bareErr), "Poll of a saturated service: context canceled"},
		{1, "is never ready", asking(func(service, context.Context) error { return layer.ErrNotReady }), "Poll of a ready service: not ready"},

		{2, "mixes up responses", remembering(), "the body"},
		{2, "sends everything twice", calling(twice), "was served 2 times"},
		{2, "sends the first request", sendsFirst(), "another request in attempt 1: its ID is not that of request"},
		{2, "sends an empty request", sends(func(req *Request) { *req = Request{} }), "its ID is not that of request 1"},
		{2, "drops the headers", sends(func(req *Request) { req.Header = nil }), "its Header is not that of request 1"},
		{2, "drops the body", sends(func(req *Request) { req.Body = nil }), "it has no body"},
		{2, "sends an empty body", sends(func(req *Request) { req.Body = http.NoBody }), "its body is \"\", want \"request 1\""},
		{2, "returns another response", returns(func(rsp *Response) { rsp.ID = 1 }), "response to another call: its ID differs"},
		{2, "returns no headers", returns(func(rsp *Response) { rsp.Header = nil }), "response to another call: its Header differs"},
		{2, "rejects without a limit", limiting("").unlimited(), "rejected by a layer without a limit"},

		{3, "takes the slot", limiting(reservesInReady), "Ready of an unused service"},
		{3, "probes by a call", asking(probing), "Ready of an unused service"},
		{3, "probes by a call that must fail", asking(pretending), "Ready made 1000 calls"},
		{3, "takes the only slot", oneOf.with(gateReserves), "Ready of an unused service"},

		{4, "wakes one", limiting(wakesOne), "99 of 100 waiting Readys do not return"},
		{4, "looks at its own limit", limiting(looksAtOwnOnly), "waiting for the inner service: Ready returned before"},
		{4, "is always ready", asking(func(service, context.Context) error { return nil }), "before there was capacity"},
		{4, "wakes none after an error", limiting(noWakeAfterError), "a call in flight fails: 100 of 100 waiting"},
		{4, "wakes none after a panic", limiting(noWakeAfterPanic), "a call in flight panics: 100 of 100 waiting"},
		{4, "wakes none after a failed body", limiting(noWakeAfterBodyError), "a body that fails: 100 of 100 waiting"},
		{4, "wakes none", oneOf.with(gateSleeps), "100 of 100 waiting Readys do not return"},

		{5, "ignores ctx", deaf(), "Ready does not return when ctx is canceled"},
		{5, "polls", asking(sleepy), "Ready does not return when ctx is canceled"},
		{5, "returns ctx.Err", asking(bareErr), "want the cause of ctx"},
		{5, "leaks a goroutine in Ready", leaky(), "after Ready: 2 goroutines leak"},
		{5, "keeps a goroutine for each call", calling(watches), "50 goroutines run until ctx ends"},
		{5, "keeps a goroutine for each Ready", asking(watchesReady), "50 goroutines run until ctx ends"},
		{5, "returns a rejection at the deadline", calling(rejectsAtDeadline), "a deadline: a call in flight returned a rejection"},
		{5, "leaks a goroutine in Call", leakyCall(), "after Call: 2 goroutines leak"},
		{5, "detaches", calling(detaches), "Call does not return when ctx is canceled"},
		{5, "returns a rejection", calling(rejectsLate), "a call in flight returned a rejection"},

		{6, "ignores ctx", calling(detaches), "the call is not rejected"},
		{6, "takes a slot before it looks at ctx", limiting(admitsDone), "the inner service was called with a done ctx"},
		{6, "returns no rejection", calling(plainDone), "does not match ErrNotReady"},
		{6, "returns no cause", calling(causeless), "does not match \"canceled by the check\""},
		{6, "serves canceled calls", oneOf.with(gateBlind), "the call does not return"},

		{7, "waits", limiting(waitsWhenFull), "a call waits without capacity"},
		{7, "rejects later", calling(slowRejection), "a call waits without capacity"},
		{7, "does not name its layer", limiting(untypedRejection), "does not name its layer"},
		{7, "queues one less", queueing(holdsOneLess), "call 16 was not admitted"},
		{7, "queues one more", queueing(holdsOneMore), "a call waits without capacity"},
		{7, "waits without limit", queueing(waitsForever), "still waits after 3s"},
		{7, "fails too early", queueing(failsEarly), "returns before the maximum wait of 3s"},
		{7, "counts the wait from the head on", queueing(waitsAsHead), "call 2 still waits after 3s"},
		{7, "serves a call after its rejection", abandoning(), "the call was rejected, and the inner service served it later"},
		{7, "does not report the wait", queueing(hidesWait), "does not report a wait of 3s"},
		{7, "reads the body", limiting(touchesBody), "the request was rejected, but its body was read"},
		{7, "closes the body", limiting(closesBody), "but its body was closed"},
		{7, "changes a header", limiting(changesHeader), "but its Header was changed"},
		{6, "reads the body first", calling(buffering), "the request was rejected, but its body was read"},
		{7, "reads the body later", calling(readsLater), "later: the request was rejected, but its body was read"},
		{7, "returns ErrClosed", calling(rejectsAsClosed), "the service is not closed, and the call returns ErrClosed"},
		{7, "wraps the body", calling(wrapping), "but its body was replaced"},

		{8, "admits one more", limiting(admitsOneMore), "5 in flight, the limit is 4"},
		{8, "admits one more of many", many(admitsOneMore), "one more call is admitted"},
		{8, "admits one less of many", many(admitsOneLess), "call 150 was not admitted"},
		{8, "admits one less", limiting(admitsOneLess), "call 4 was not admitted"},
		{8, "frees at return", limiting(freesEarly), "in flight, the limit is 4"},
		{8, "frees twice", limiting(freesTwice), "in flight, the limit is 4"},
		{8, "counts after the check", limiting(checksThenCounts), "in flight, the limit is 4"},
		{8, "does not declare its limit", hiddenLimit(), "100 of 1000 calls are admitted"},
		{8, "leaks on panic", limiting(leaksOnPanic), "is not ready"},
		{8, "leaks on error", limiting(leaksOnError), "is not ready"},
		{8, "leaks abandoned bodies", limiting(leaksAbandoned), "after the calls had ended"},
		{8, "leaks a slot for each canceled call", oneOf.with(gateLeaks), "is not ready"},

		{9, "last in, first out", queueing(lastInFirstOut), "were served out of order"},
		{9, "serves new calls first", queueing(newCallsFirst), "a new call is served before the waiting"},

		{10, "a canceled head wakes no other", queueing(headLosesTurn), "the first three are served 0, 0 and 0 times"},
		{10, "keeps the places of canceled calls", queueing(keepsPlaces), "were canceled: limit 0, queue 16: call"},
		{10, "wakes a canceled waiter", limiting(losesWake), "when another was canceled as capacity came"},
		{10, "checks ctx only at the head", queueing(headListens), "a canceled call in the queue: the call does not return"},
		{10, "keeps waiting in the queue", queueing(ignoresCtx), "does not return"},

		{11, "wakes the whole queue", Layer{Layer: herds, Queue: 1000}, "goroutines were woken"},
		{11, "all wait for inner", queueing(allAsk).long(), "500 "},
		{11, "all poll inner", Layer{Layer: herdsAsking, Queue: 500}, "times Ready"},
		{11, "polls before each call", calling(asksBefore), "and 200 times Ready"},

		{12, "is closed once", forgetful(), "want ErrClosed"},
		{12, "returns ErrNotReady", calling(optimistic), "does not match \"closed\""},
		{12, "opens again", oneOf.with(gateReopens), "Call of a closed service"},

		{13, "counts each event", counting(countsEvents), "are counted as 3"},
		{13, "counts at return", counting(countsAtReturn), "1 responses are counted as ended, want 0"},
		{13, "leaks abandoned bodies", limiting(leaksAbandoned), "body canceled unread"},
		{13, "frees at return", limiting(freesEarly), "4 bodies are open, and one more call is admitted"},
		{13, "frees twice", limiting(freesTwice), "one more call is admitted"},
		{13, "keeps the inner body open", calling(keepsOpen), "the inner body was not closed"},
		{13, "hides that ctx ends a body", calling(cutShort), "ctx ends the body like a complete one: \"resp\""},
		{13, "hides that a body fails", calling(wholeBody), "reading ends with <nil>"},
		{13, "cancels when Call returns", calling(deferCancel), "reading the body failed: context canceled"},
		{13, "detaches when Call returns", calling(newContext), "the inner ctx does not end"},
		{13, "detaches", calling(detaches), "the inner ctx does not end"},
		{13, "replaces the cause", calling(otherCause), "the cause of the inner ctx is context canceled"},
		{13, "loses the context", calling(background), errLostContext.Error()},

		{14, "attempts once more", resends(3, resendsOnceMore), "the inner service is called 4 times, at most 3"},
		{14, "retries rejections too often", resends(3, resendsBlind), "does not return"},
		{14, "never returns", resends(3, resendsNever), "does not return"},
		{14, "retries after ctx has ended", resends(3, resendsCanceled), "though ctx ended in the first"},
		{14, "ignores ctx in the pause", resends(3, resendsAfterPause), "does not return with the cause of its ctx"},
		{14, "leaves bodies open", resends(3, resendsUnclosed), "3 response bodies are open"},
		{14, "closes the returned body", resends(3, resendsClosed), "the response body is"},
		{14, "sends the rest of the body", resends(3, resendsRead), "another request in attempt 2: its body is \"\""},
		{14, "returns a rejection after a failure", resends(3, resendsRejected), "a rejection after a failure: the inner service fails"},
		{14, "does not cancel the loser", hedges(hedgesOn), "attempt 1 continues"},
		{14, "does not close the loser", hedges(hedgesUnclosed), "2 response bodies are open"},
		{14, "cancels the winner", hedges(hedgesWinner), "the response body is"},
		{14, "waits for the loser", hedges(hedgesForFirst), "another attempt has a response, and the call does not return"},

		{15, "prints errors", calling(prints), "does not pass errors.Is"},
		{15, "retries failures", calling(sendsAgain), "called 2 times, at most 1 are declared"},
		{15, "drops the type", calling(halfChain), "does not pass errors.As"},
		{15, "returns a rejection", calling(rejectsLate), "the call is rejected"},
		{15, "returns an error for a panic", calling(recovers), "the caller gets the panic <nil>"},
		{15, "calls in a goroutine", calling(ownGoroutine), "the caller's goroutine continues"},
		{15, "leaks on panic", limiting(leaksOnPanic), "the panic <nil> and the error right: not ready"},

		{16, "drops the deadline", calling(detaches), "has no deadline"},
		{16, "extends the deadline", calling(generous), "is 1h0m0s later"},
		{16, "starts the deadline late", queueing(restartsDeadline), "in the queue: the deadline of the inner service"},

		{17, "allocates", transparent(calling(allocating)), "allocate"},
		{17, "copies the request", transparent(calling(copies)), "another request"},
		{17, "wraps the ctx", transparent(calling(marksCtx)), "another context"},
		{17, "copies the response", transparent(calling(newResponseEach)), "another response"},

		{18, "starts a goroutine", Layer{Layer: busy}, "100 goroutines leak"},
		{18, "outlives its ctx", Layer{New: immortal}, "100 goroutines leak"},
		{18, "calls", eager(func(s service) { s.Call(context.Background(), &Request{}) }), "is called before there is a request"},
		{18, "asks", eager(func(s service) { s.Ready(context.Background()) }), "Ready of the inner service is called before"},
	}
}

func (l LayerOf[Req, Rsp]) unlimited() LayerOf[Req, Rsp] {
	l.Limit = 0
	return l
}

// many has a limit that the concurrent callers do not reach.
func many(wrong fault) Layer {
	return Layer{Layer: limits(150, layer.AtEnd[*Response](), wrong), Limit: 150, Callers: 100}
}

// long has a queue that is long enough for check 11.
func (l LayerOf[Req, Rsp]) long() Layer {
	return Layer{Layer: queues(500, 0, allAsk), Queue: 500}
}

// Each check must find the defects of the subjects that violate its invariant.
func TestRunRejectsDefects(t *testing.T) {
	tested := make(map[int]bool)
	for _, w := range wrongs() {
		tested[w.number] = true
		t.Run(fmt.Sprintf("%02d %s", w.number, w.name), func(t *testing.T) {
			s, err := w.subject.subject()
			require.NoError(t, err)
			c := numbered(t, w.number)
			if raceEnabled && w.want == "allocate" {
				t.Skip("allocations are not checked under the race detector")
			}
			require.Empty(t, c.skips(s))
			synctest.Test(t, func(t *testing.T) {
				assert.ErrorContains(t, c.verify(s), w.want)
			})
		})
	}
	for _, c := range checks[*Request, *Response]() {
		assert.True(t, tested[c.number], "no defect for check %d", c.number)
	}
}

// A limit above the number of concurrent callers is checked as well.
func TestRunLargeLimit(t *testing.T) {
	s, err := many("").subject()
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) { require.NoError(t, numbered(t, 8).verify(s)) })
}

func numbered(t *testing.T, n int) check[*Request, *Response] {
	for _, c := range checks[*Request, *Response]() {
		if c.number == n {
			return c
		}
	}
	require.Fail(t, "no such check", "%d", n)
	panic("unreachable")
}
