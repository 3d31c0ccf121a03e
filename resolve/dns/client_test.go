package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/resolve"
)

// first returns the first item of a stream.
func first(ctx context.Context, r resolve.Resolver, target string) (resolve.Update, error) {
	for u, err := range r.Resolve(ctx, target) {
		return u, err
	}
	return resolve.Update{}, errors.New("the stream ended")
}

// patient waits for servers that do answer as long as a slow machine takes.
func patient() Option { return WithTimeout(time.Minute) }

// text is an update in one line: "replace 10.0.0.1:80*10000".
func text(u resolve.Update) string {
	words := []string{u.Kind.String()}
	for _, e := range u.Endpoints {
		word := e.Addr.String()
		if e.Weight > 0 {
			word += fmt.Sprint("*", e.Weight)
		}
		if e.Priority > 0 {
			word += fmt.Sprint("/", e.Priority)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// Over real sockets: an answer of more than 1232 bytes is asked for over TCP.
func TestClientTruncated(t *testing.T) {
	s := &server{}
	var lines []string
	for n := range 100 {
		lines = append(lines, fmt.Sprintf("web.test. 60 A 10.0.1.%d", n))
	}
	s.put("web", lines...)
	s.put("small", "small.test. 60 A 10.0.0.1")
	r := New(WithServers(s.loopback(t)), patient(), WithIPv4Only())

	u, err := first(t.Context(), r, "web.test:80")
	require.NoError(t, err)
	assert.Len(t, u.Endpoints, 100)
	assert.Equal(t, []string{"udp A web.test.", "tcp A web.test."}, s.asked())

	u, err = first(t.Context(), r, "small.test:80")
	require.NoError(t, err)
	assert.Equal(t, "replace 10.0.0.1:80", text(u))
	assert.Equal(t, []string{"udp A small.test."}, s.asked())
}

// 60 addresses take more than the 512 bytes of plain DNS and less than 1232.
func TestClientEDNS0(t *testing.T) {
	s := &server{}
	var lines []string
	for n := range 60 {
		lines = append(lines, fmt.Sprintf("web.test. 60 A 10.0.1.%d", n))
	}
	s.put("web", lines...)
	u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only()), "web.test:80")
	require.NoError(t, err)
	assert.Len(t, u.Endpoints, 60)
	assert.Equal(t, []string{"udp A web.test."}, s.asked())
}

func TestClientTruncatedOverTCP(t *testing.T) {
	s := &server{}
	s.put("web", "web.test. 60 A 10.0.0.1")
	s.fail(always(reply{truncated: true}))
	u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only(), WithAttempts(1)), "web.test:80")
	require.NoError(t, err)
	assert.Equal(t, "replace 10.0.0.1:80", text(u))
}

// Each message before the right answer has one wrong field and another address.
func TestClientForgedAnswers(t *testing.T) {
	spoofs := map[string]func(*dnsmessage.Message){
		"id":        func(m *dnsmessage.Message) { m.ID++ },
		"name":      func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("webs.test.") },
		"type":      func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeTXT },
		"class":     func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS },
		"no answer": func(m *dnsmessage.Message) { m.Response = false },
		"none":      func(m *dnsmessage.Message) { m.Questions = nil },
		"two":       func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) },
	}
	for name, spoil := range spoofs {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			s.put("web", "web.test. 60 A 10.0.0.1")
			s.fail(func(string, dnsmessage.Question) *reply {
				return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
					m.Questions = slices.Clone(m.Questions)
					m.Answers = records("web.test. 60 A 10.6.6.6")
					spoil(&m)
					return []dnsmessage.Message{m, m}
				}}
			})
			u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only()), "web.test:80")
			require.NoError(t, err)
			assert.Equal(t, "replace 10.0.0.1:80", text(u))
		})
	}
}

// The forged messages of the test above differ in one field only: without it they are
// accepted.
func TestClientCase(t *testing.T) {
	s := &server{}
	s.put("web", "web.test. 60 A 10.0.0.1")
	s.fail(func(string, dnsmessage.Question) *reply {
		return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
			m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("WEB.Test."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
			m.Answers = records("Web.TEST. 60 A 10.0.0.2")
			return []dnsmessage.Message{m}
		}}
	})
	u, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only()), "web.test:80")
	require.NoError(t, err)
	assert.Equal(t, "replace 10.0.0.2:80", text(u))
}

func TestClientWithoutTCP(t *testing.T) {
	for name, end := range map[string]error{"refused": errors.New("refused"), "cut": nil} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			s.put("web", "web.test. 60 A 10.0.0.1")
			s.fail(always(reply{truncated: true}))
			at := s.loopback(t)
			r := New(WithServers(at), patient(), WithIPv4Only(), WithAttempts(1), dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
				if network == "tcp" && end != nil {
					return nil, end
				}
				if network == "tcp" {
					near, far := net.Pipe()
					go func() {
						defer far.Close()
						far.Read(make([]byte, 4096))
						far.Write([]byte{1, 0, 9}) // 256 bytes are to come, and do not
					}()
					return near, nil
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}))
			_, err := first(t.Context(), r, "web.test:80")
			if end == nil {
				end = io.ErrUnexpectedEOF
			}
			require.ErrorIs(t, err, end)
		})
	}
}

func TestClientWrongAnswerOverTCP(t *testing.T) {
	s := &server{}
	s.put("web", "web.test. 60 A 10.0.0.1")
	s.fail(func(network string, _ dnsmessage.Question) *reply {
		if network == "udp" {
			return &reply{truncated: true}
		}
		return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
			m.ID++
			return []dnsmessage.Message{m}
		}}
	})
	_, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithIPv4Only(), WithAttempts(1)), "web.test:80")
	require.ErrorContains(t, err, "the message over tcp is not the answer to the question")
}

// The sockets are closed when a stream ends, also in the middle of an exchange.
func TestClientClosesConnections(t *testing.T) {
	s := &server{}
	s.put("web", "web.test. 60 A 10.0.0.1", "web.test. 60 AAAA fd00::1")
	at := s.loopback(t)
	open := make(chan *counted, 100)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		c := &counted{Conn: conn, closed: make(chan struct{})}
		open <- c
		return c, err
	}
	r := New(WithServers(at), patient(), dialer(dial))
	_, err := first(t.Context(), r, "web.test:80")
	require.NoError(t, err)

	s.fail(always(reply{silent: true}))
	ctx, cancel := context.WithCancel(t.Context())
	var streams errgroup.Group
	streams.Go(func() error {
		for range r.Resolve(ctx, "web.test:80") {
			return errors.New("an item of a silent server")
		}
		return nil
	})
	var conns []*counted
	for range 4 {
		conns = append(conns, <-open)
	}
	cancel()
	require.NoError(t, streams.Wait())
	for _, c := range conns {
		select {
		case <-c.closed:
		default:
			t.Error("a connection is open")
		}
	}
}

type counted struct {
	net.Conn
	closed chan struct{}
}

func (c *counted) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.Conn.Close()
}
