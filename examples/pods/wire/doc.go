// Package wire parses captures of tcpdump and detects whether each connection is TLS.
//
//	capture.pcap ─▶ Read ─▶ []Flow             one for each direction of a connection
//	                         ├─ Data           its bytes in order
//	                         ├─ TLS            whether all of it is TLS records
//	                         └─ ServerName     the client's server name
package wire
