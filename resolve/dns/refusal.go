package dns

import (
	"fmt"

	"golang.org/x/net/dns/dnsmessage"
)

// status is whether there is such a name, or a refusal.
func status(m dnsmessage.Message) (dnsmessage.RCode, error) {
	said := refusal{rcode: m.RCode}
	for _, r := range m.Additionals {
		if r.Header.Type == dnsmessage.TypeOPT {
			said = refusal{r.Header.ExtendedRCode(m.RCode), true}
		}
	}
	if said.rcode == dnsmessage.RCodeSuccess || said.rcode == dnsmessage.RCodeNameError {
		return said.rcode, nil
	}
	return said.rcode, said
}

// refusal is an RCODE that answers nothing.
type refusal struct {
	rcode dnsmessage.RCode
	edns  bool // the server knows EDNS0
}

func (r refusal) Error() string {
	switch r.rcode {
	case dnsmessage.RCodeFormatError:
		return "FORMERR"
	case dnsmessage.RCodeServerFailure:
		return "SERVFAIL"
	case dnsmessage.RCodeNotImplemented:
		return "NOTIMP"
	case dnsmessage.RCodeRefused:
		return "REFUSED"
	default:
		return fmt.Sprintf("RCODE %d", r.rcode)
	}
}

// unknown reports whether an RCODE may be that of a server which does not know
// EDNS0: RFC 6891, section 7.
func unknown(rcode dnsmessage.RCode) bool {
	return rcode == dnsmessage.RCodeFormatError || rcode == dnsmessage.RCodeNotImplemented
}
