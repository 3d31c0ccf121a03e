package layertest

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// wrong says which check must reject which subject, and in which words.
type wrong struct {
	number  int
	name    string
	subject interface {
		subject() (*subject[*Request, *Response], error)
	}
	says string
}

var oneOf = Service{New: func(context.Context) service { return &gate{free: 1} }}

func wrongs() []wrong {
	return []wrong{
		{0, "looks at ctx first", asking(ctxFirst), "Poll of a ready service"},
		{0, "is always ready", asking(func(service, context.Context) error { return nil }), "Poll of a saturated service: <nil>"},
		{0, "calls it closed", asking(closedForNow), "Poll of a saturated service: not ready\nclosed, want ErrNotReady"},
		{0, "panics", asking(func(service, context.Context) error { panic("in Ready") }), "it panicked: in Ready"},
		{0, "ends its goroutine", asking(func(service, context.Context) error { exit(); return nil }), "it ended its goroutine"},
		{0, "has a ctx without cause", asking(bareErr), "Poll of a saturated service: context canceled"},

		{1, "mixes up responses", remembering(), "the body"},
		{1, "sends everything twice", calling(twice), "was served 2 times"},
		{1, "sends the first request", sendsFirst(), "another request, in try 1: its ID is not that of request"},
		{1, "sends no request", sends(func(req *Request) { *req = Request{} }), "its ID is not that of request 1"},
		{1, "sends no header", sends(func(req *Request) { req.Header = nil }), "its Header is not that of request 1"},
		{1, "sends no body", sends(func(req *Request) { req.Body = nil }), "it has lost its body"},
		{1, "sends an empty body", sends(func(req *Request) { req.Body = http.NoBody }), "its body reads as \"\", want \"request 1\""},
		{1, "answers for another", answers(func(rsp *Response) { rsp.ID = 1 }), "is not its own: its ID is another"},
		{1, "answers without a header", answers(func(rsp *Response) { rsp.Header = nil }), "is not its own: its Header is another"},
		{1, "refuses now and then", limiting("").unlimited(), "refused, though without a limit"},

		{2, "takes the slot", limiting(reservesInReady), "Ready of an unused service"},
		{2, "probes by a call", asking(probing), "Ready of an unused service"},
		{2, "probes by a call that must fail", asking(pretending), "Ready made 1000 calls"},
		{2, "takes the only place", oneOf.with(gateReserves), "Ready of an unused service"},

		{3, "wakes one", limiting(wakesOne), "99 of 100 waiting Readys do not return"},
		{3, "looks at its own limit", limiting(looksAtOwnOnly), "waiting for the inner service: Ready returned before"},
		{3, "is always ready", asking(func(service, context.Context) error { return nil }), "before there was capacity"},
		{3, "wakes nobody after an error", limiting(sleepsOnError), "a call in flight fails: 100 of 100 waiting"},
		{3, "wakes nobody after a panic", limiting(sleepsOnPanic), "a call in flight panics: 100 of 100 waiting"},
		{3, "wakes nobody after a broken body", limiting(sleepsOnBreak), "a body that breaks: 100 of 100 waiting"},
		{3, "wakes nobody", oneOf.with(gateSleeps), "100 of 100 waiting Readys do not return"},

		{4, "does not look at ctx", deaf(), "Ready does not return when ctx is cancelled"},
		{4, "polls", asking(sleepy), "Ready does not return when ctx is cancelled"},
		{4, "returns ctx.Err", asking(bareErr), "want the cause of ctx"},
		{4, "leaves a goroutine in Ready", leaky(), "after Ready: 2 goroutines are left behind"},
		{4, "leaves a goroutine for each call", calling(watches), "50 goroutines go on until ctx ends"},
		{4, "leaves a goroutine for each who asks", asking(watchesReady), "50 goroutines go on until ctx ends"},
		{4, "calls a deadline a refusal", calling(refusesAtDeadline), "a deadline: a call that was admitted failed"},
		{4, "listens as the head", queueing(headListens), "number 2 in the queue, whose ctx is cancelled: the call does not return"},
		{4, "leaves a goroutine in Call", leakyCall(), "after Call: 2 goroutines are left behind"},
		{4, "detaches", calling(detaches), "Call does not return when ctx is cancelled"},
		{4, "calls it a refusal", calling(refusesLate), "which calls it untouched"},
		{4, "queues on", queueing(ignoresCtx), "the call does not return"},

		{5, "does not look at ctx", calling(detaches), "the call is not refused"},
		{5, "does not look before it takes a slot", limiting(admitsDone), "the inner service was called all the same"},
		{5, "is no refusal", calling(plainDone), "does not match ErrNotReady"},
		{5, "has no cause", calling(causeless), "does not match \"the caller changed its mind\""},
		{5, "serves whom nobody waits for", oneOf.with(gateBlind), "the call does not return"},

		{6, "waits", limiting(waitsWhenFull), "a call waits where nothing is left"},
		{6, "refuses after a while", calling(slowRefusal), "a call waits where nothing is left"},
		{6, "does not say where", limiting(untypedRefusal), "which layer it comes from"},
		{6, "holds one less", queueing(holdsOneLess), "call 16 was not taken"},
		{6, "holds one more", queueing(holdsOneMore), "a call waits where nothing is left"},
		{6, "never gives up", queueing(neverGivesUp), "still waits after 3s"},
		{6, "gives up early", queueing(givesUpEarly), "gave up after"},
		{6, "counts from the head on", queueing(waitsAsHead), "still waits after 3s (number 2)"},
		{6, "serves what it has given up", abandoning(), "the call was refused, and the inner service has served it later"},
		{6, "hides the wait", queueing(hidesWait), "does not say that the call has waited for 3s"},

		{7, "reads the body", limiting(touchesBody), "saturated: the request was refused, but its body was read"},
		{7, "closes the body", limiting(closesBody), "but its body was closed"},
		{7, "changes a header", limiting(changesHeader), "but its Header was changed"},
		{7, "buffers first", calling(buffering), "ctx done: the request was refused, but its body was read"},
		{7, "reads the body later", calling(readsLater), "a while later: the request was refused, but its body was read"},
		{7, "refuses for good", calling(refusesForGood), "the service is not closed, and the call returns ErrClosed"},
		{7, "wraps the body", calling(wrapping), "but its body was replaced"},

		{8, "admits one more", limiting(admitsOneMore), "5 in flight, the limit is 4"},
		{8, "admits one more of many", many(admitsOneMore), "1501 in flight, the limit is 1500"},
		{8, "admits one less of many", many(admitsOneLess), "never more than 1499 in flight"},
		{8, "admits one less", limiting(admitsOneLess), "never more than 3 in flight"},
		{8, "frees at return", limiting(freesEarly), "in flight, the limit is 4"},
		{8, "frees twice", limiting(freesTwice), "in flight, the limit is 4"},
		{8, "does not declare its limit", hiddenLimit(), "100 of 1000 calls get through"},

		{9, "leaks on panic", limiting(leaksOnPanic), "is not ready"},
		{9, "leaks on error", limiting(leaksOnError), "is not ready"},
		{9, "leaks abandoned bodies", limiting(leaksAbandoned), "is not ready"},
		{9, "frees twice", limiting(freesTwice), "a call more than that is taken"},
		{9, "loses a place for each caller who has gone", oneOf.with(gateLeaks), "is not ready"},

		{10, "last in, first out", queueing(lastInFirstOut), "were not served in their turn"},
		{10, "newcomers first", queueing(newcomersFirst), "a new call is served before the waiting"},

		{11, "a head that leaves tells nobody", queueing(headLosesBaton), "the first three are served 0, 0 and 0 times"},
		{11, "keeps the places of those who leave", queueing(keepsPlaces), "left the queue from inside: with limit 0, queue 16, call 3"},
		{11, "gives the wake-up to one who has gone", limiting(losesWake), "when another left as capacity came"},

		{12, "wakes the whole queue", Layer{Layer: herds, Queue: 1000}, "goroutines were woken"},
		{12, "everybody waits for inner", queueing(everybodyAsks).long(), "500 wait for as many turns: "},
		{12, "everybody asks inner", Layer{Layer: herdsAsking, Queue: 500}, "times Ready"},
		{12, "asks before each call", calling(asksBefore), "and 2000 times Ready"},

		{13, "forgets", forgetful(), "want ErrClosed"},
		{13, "calls it not ready", calling(optimistic), "does not match \"closed\""},
		{13, "opens again", oneOf.with(gateReopens), "Call of a closed service"},

		{14, "counts each event", counting(countsEvents), "are counted as 3"},
		{14, "counts at return", counting(countsAtReturn), "counted as ended while their bodies are open"},
		{14, "leaks abandoned bodies", limiting(leaksAbandoned), "body never read, ctx done"},
		{14, "frees at return", limiting(freesEarly), "4 bodies are open, and a call more is admitted"},
		{14, "frees twice", limiting(freesTwice), "a call more than that is taken"},
		{14, "keeps the inner body open", calling(keepsOpen), "the inner body was not closed"},
		{14, "hides that ctx cuts a body off", calling(cutShort), "which then ends like a whole one: it reads as \"resp\""},
		{14, "hides that a body is broken", calling(wholeBody), "reading ends with <nil>"},

		{15, "cancels when Call returns", calling(deferCancel), "the inner ctx ends before the body is closed"},
		{15, "lets go when Call returns", calling(newContext), "the cause of the inner one is <nil>"},
		{15, "never ends", calling(detaches), "the cause of the inner one is <nil>"},

		{16, "sends once more", resends(3, resendsOnceMore), "the inner service is called 4 times, at most 3"},
		{16, "sends what is refused without end", resends(3, resendsBlind), "does not return"},
		{16, "never returns", resends(3, resendsNever), "does not return"},
		{16, "sends for one who has gone", resends(3, resendsForGone), "though ctx is done"},
		{16, "sleeps on", resends(3, resendsAfterPause), "does not return with the cause of its ctx"},
		{16, "does not close what it gives up", resends(3, resendsUnclosed), "3 response bodies are open"},
		{16, "closes what it returns", resends(3, resendsClosed), "the response reads as"},
		{16, "sends what is left of the body", resends(3, resendsRead), "another request, in try 2: its body reads as \"\""},
		{16, "calls what was sent untouched", resends(3, resendsRefused), "failing once, then refused: the inner service fails"},
		{16, "lets the loser go on", hedges(hedgesOn), "attempt 1 continues"},
		{16, "does not close the loser", hedges(hedgesUnclosed), "2 response bodies are open"},
		{16, "cancels the winner", hedges(hedgesWinner), "the response reads as"},
		{16, "waits for the loser", hedges(hedgesForFirst), "another try has answered, and the call does not return"},

		{17, "prints errors", calling(prints), "does not pass errors.Is"},
		{17, "sends again what has failed", calling(sendsAgain), "called 2 times, at most 1 are declared"},
		{17, "drops the type", calling(halfChain), "does not pass errors.As"},
		{17, "calls everything a refusal", calling(refusesLate), "the call is refused"},
		{17, "makes an error of a panic", calling(recovers), "its caller sees the panic <nil>"},
		{17, "calls in a goroutine", calling(ownGoroutine), "the caller's does not"},
		{17, "leaks on panic", limiting(leaksOnPanic), "the panic <nil> and the error right: not ready"},

		{18, "has no deadline", calling(detaches), "sees no deadline"},
		{18, "gives more time", calling(generous), "a deadline 1h0m0s later"},
		{18, "starts the deadline late", queueing(restartsDeadline), "in the queue: the inner service sees a deadline"},

		{19, "is always ready", asking(func(service, context.Context) error { return nil }), "is not ready: <nil>"},
		{19, "is never ready", asking(func(service, context.Context) error { return layer.ErrNotReady }), "is ready: not ready"},
		{19, "allocates", transparent(calling(allocating)), "allocate"},
		{19, "copies the request", transparent(calling(copies)), "another request"},
		{19, "wraps the ctx", transparent(calling(marksCtx)), "another context"},
		{19, "copies the response", transparent(calling(newResponseEach)), "another response"},

		{20, "starts a goroutine", Layer{Layer: busy}, "100 goroutines are left behind"},
		{20, "outlives its ctx", Layer{New: immortal}, "100 goroutines are left behind"},
		{20, "calls", eager(func(s service) { s.Call(context.Background(), &Request{}) }), "before there is a request"},
		{20, "asks", eager(func(s service) { s.Ready(context.Background()) }), "called without a request"},
	}
}

func (l LayerOf[Req, Rsp]) unlimited() LayerOf[Req, Rsp] {
	l.Limit = 0
	return l
}

// many is a limit that no crowd reaches.
func many(wrong fault) Layer {
	return Layer{Layer: limits(1500, layer.AtEnd[*Response](), wrong), Limit: 1500}
}

// long makes a queue of which a herd can be made.
func (l LayerOf[Req, Rsp]) long() Layer {
	return Layer{Layer: queues(500, 0, everybodyAsks), Queue: 500}
}

// TestRejects proves the checks: each must find what is wrong with the
// subjects that are wrong in its matter.
func TestRejects(t *testing.T) {
	proved := make(map[int]bool)
	for _, w := range wrongs() {
		proved[w.number] = true
		t.Run(fmt.Sprintf("%02d %s", w.number, w.name), func(t *testing.T) {
			s, err := w.subject.subject()
			require.NoError(t, err)
			c := numbered(t, w.number)
			if raced && w.says == "allocate" {
				t.Skip("allocations are not looked at under the race detector")
			}
			if c.skip != nil {
				require.Empty(t, c.skip(s.declared))
			}
			synctest.Test(t, func(t *testing.T) {
				assert.ErrorContains(t, c.verify(s), w.says)
			})
		})
	}
	for _, c := range checks[*Request, *Response]() {
		assert.True(t, proved[c.number], "nothing proves check %d", c.number)
	}
}

// A limit that no crowd reaches is proved with some in flight all the time.
func TestPeakOfMany(t *testing.T) {
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
