package dns

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// dotted puts a dot in the label that is "hostXmaster".
func dotted(t *testing.T, m dnsmessage.Message) []byte {
	t.Helper()
	msg := packed(t, m)
	require.Contains(t, string(msg), "hostXmaster")
	return bytes.ReplaceAll(msg, []byte("hostXmaster"), []byte("host.master"))
}

// The mailbox of a zone may be host\.master.example: RFC 1035, section 8.
func TestUnpackMailboxWithDot(t *testing.T) {
	asked := question("web.", dnsmessage.TypeAAAA)
	soa := records("web. 60 SOA 9")
	body, ok := soa[0].Body.(*dnsmessage.SOAResource)
	require.True(t, ok)
	body.MBox = dnsmessage.MustNewName("hostXmaster.web.")
	a, err := interpret(dotted(t, dnsmessage.Message{
		Header:    dnsmessage.Header{Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{asked}, Authorities: soa,
	}), asked)
	require.NoError(t, err)
	require.Equal(t, hosts{exists: true, ttl: 9 * time.Second}, a.hosts)
}

// Unrelated records, with another name or content, are ignored.
func TestUnpackUnrelatedRecords(t *testing.T) {
	asked := question("web.", dnsmessage.TypeA)
	a, err := interpret(dotted(t, dnsmessage.Message{
		Header:    dnsmessage.Header{Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{asked},
		Answers:   records("hostXmaster. 60 A 10.0.0.9", "web. 60 A 10.0.0.1"),
		Authorities: []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.NSResource{NS: dnsmessage.MustNewName("hostXmaster.")},
		}},
		Additionals: records("hostXmaster. 60 A 10.0.0.9"),
	}), asked)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, a.addrs)
}

// An alias that cannot be parsed is an error.
func TestUnpackInvalidAlias(t *testing.T) {
	asked := question("web.", dnsmessage.TypeA)
	_, err := interpret(dotted(t, dnsmessage.Message{
		Header:    dnsmessage.Header{Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{asked}, Answers: records("web. 60 CNAME hostXmaster."),
	}), asked)
	require.ErrorContains(t, err, "malformed answer")
}

func TestUnpackShortSOA(t *testing.T) {
	asked := question("web.", dnsmessage.TypeA)
	_, err := interpret(packed(t, dnsmessage.Message{
		Questions: []dnsmessage.Question{asked},
		Authorities: []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.UnknownResource{Type: dnsmessage.TypeSOA, Data: []byte{0, 0, 1}},
		}},
	}), asked)
	require.ErrorContains(t, err, "malformed answer")
}
