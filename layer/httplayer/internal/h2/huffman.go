package h2

// huffmanLengths has the length of the code of each byte (RFC 7541, appendix B). The
// lengths define the codes, because the code is canonical.
var huffmanLengths = [256]uint8{
	13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
	28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
	6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
	5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
	13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
	7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
	15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
	6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
	20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
	24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
	22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
	21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
	26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
	19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
	20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
	26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
}

// huffmanRange describes the Huffman codes of one length. These codes are consecutive
// numbers.
type huffmanRange struct {
	length       uint
	first, limit uint64 // codes, aligned to the upper end of 32 bits; limit is exclusive
	symbols      []byte
}

type huffmanShort struct{ symbol, length uint8 }

var (
	huffmanRanges = makeHuffmanRanges()
	huffmanShorts = makeHuffmanShorts() // index: next 8 bits; length 0 for longer codes
)

func makeHuffmanRanges() (ranges []huffmanRange) {
	next := uint64(0)
	for length := uint(5); length <= 30; length++ {
		r := huffmanRange{length: length, first: next}
		for symbol, l := range huffmanLengths {
			if uint(l) == length {
				r.symbols = append(r.symbols, byte(symbol))
			}
		}
		if len(r.symbols) == 0 {
			continue
		}
		next += uint64(len(r.symbols)) << (32 - length)
		r.limit = next
		ranges = append(ranges, r)
	}
	return ranges
}

func makeHuffmanShorts() (shorts [256]huffmanShort) {
	for i := range shorts {
		for _, r := range huffmanRanges {
			if top := uint64(i) << 24; r.length <= 8 && top < r.limit {
				shorts[i] = huffmanShort{r.symbols[(top-r.first)>>(32-r.length)], uint8(r.length)}
				break
			}
		}
	}
	return shorts
}

// appendHuffman appends the decoded form of b to out. It returns false if b is malformed.
func appendHuffman(out, b []byte) ([]byte, bool) {
	var acc uint64 // its low bits are not yet decoded
	bits := uint(0)
	for {
		for bits <= 48 && len(b) > 0 {
			acc, bits, b = acc<<8|uint64(b[0]), bits+8, b[1:]
		}
		top := acc << (64 - bits) >> 32
		if short := huffmanShorts[top>>24]; short.length > 0 {
			if uint(short.length) > bits {
				break
			}
			out = append(out, short.symbol)
			bits -= uint(short.length)
			continue
		}
		r := longRange(top)
		if r == nil || r.length > bits {
			break
		}
		out = append(out, r.symbols[(top-r.first)>>(32-r.length)])
		bits -= r.length
	}
	// Padding is at most 7 bits of the code of EOS, which are ones.
	return out, len(b) == 0 && bits < 8 && acc&(1<<bits-1) == 1<<bits-1
}

// longRange returns the range that contains the next Huffman code of the input. The argument
// top has the next 32 bits of the input. The result is nil if these bits begin with the code
// of EOS.
func longRange(top uint64) *huffmanRange {
	for i := range huffmanRanges {
		if r := &huffmanRanges[i]; top < r.limit {
			return r
		}
	}
	return nil
}
