/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reads the markers of a JPEG file, from the first to the last, without decoding anything. Pillow raises an error for
 * some damaged files when it loads them, and ignores damage in others. To give neither other pixels nor another error,
 * only files whose markers are complete and in order are decoded here; all others are left to Pillow.
 *
 * The markers are described in ITU-T T.81 (1992), annex B.
 */

#include "image.h"

#include <errno.h>
#include <string.h>

#define ODD(...) hr__fail(-ENOTSUP, "image: " __VA_ARGS__)

enum marker {
    SOF0 = 0xC0, /* baseline; SOF1: extended; SOF2: progressive; others are not decoded */
    SOF1 = 0xC1,
    SOF2 = 0xC2,
    DHT = 0xC4,
    SOF15 = 0xCF,
    JPG = 0xC8,
    DAC = 0xCC,
    RST0 = 0xD0,
    RST7 = 0xD7,
    SOI = 0xD8,
    EOI = 0xD9,
    SOS = 0xDA,
    DQT = 0xDB,
    DRI = 0xDD,
    APP0 = 0xE0,
    APP15 = 0xEF,
    COM = 0xFE,
};

enum { COMPONENTS = 3, TABLES = 4, COEFFICIENTS = 64, UNSEEN = -1 };

struct component {
    unsigned id, across, down, quantisation; /* sampling factors, and the number of the quantisation table */
    int low_bit[COEFFICIENTS];               /* up to which bit each coefficient has been sent; UNSEEN: not at all */
};

struct scan {
    const unsigned char *at, *end;
    struct component components[COMPONENTS];
    unsigned component_count; /* 0: before the frame header */
    uint32_t width, height;
    bool is_progressive, has_scan;
    bool has_quantisation[TABLES], has_huffman[2][TABLES]; /* [0]: DC, [1]: AC */
    uint32_t restart_interval;
};

static unsigned read16(const unsigned char *at) {
    return (unsigned)at[0] << 8 | at[1];
}

/* ---- tables ---- */

static int read_quantisation(struct scan *scan, const unsigned char *at, size_t bytes) {
    while (bytes) {
        unsigned number = at[0] & 15, item_bytes = at[0] >> 4 ? 2 : 1;
        size_t whole = 1 + (size_t)COEFFICIENTS * item_bytes;
        if (number >= TABLES || at[0] >> 4 > 1 || bytes < whole) return ODD("a quantisation table is damaged");
        for (unsigned i = 0; i < COEFFICIENTS; i++)
            if ((item_bytes == 2 ? read16(at + 1 + 2 * i) : at[1 + i]) == 0) return ODD("a quantisation table has a 0");
        scan->has_quantisation[number] = true;
        at += whole;
        bytes -= whole;
    }
    return 0;
}

/* Checks that the numbers of codes of each length fit together, with no code of ones only. */
static bool is_code(const unsigned char counts[16], unsigned *ret_total) {
    unsigned code = 0, total = 0;
    for (unsigned length = 0; length < 16; length++) {
        code = (code << 1) + counts[length];
        total += counts[length];
        if (code >= 2U << length && counts[length]) return false;
        if (code > 2U << length) return false;
    }
    *ret_total = total;
    return total > 0 && total <= 256;
}

static int read_huffman(struct scan *scan, const unsigned char *at, size_t bytes) {
    while (bytes) {
        unsigned kind = at[0] >> 4, number = at[0] & 15, total;
        if (bytes < 17 || kind > 1 || number >= TABLES || !is_code(at + 1, &total) || bytes < 17 + total)
            return ODD("a Huffman table is damaged");
        for (unsigned i = 0; i < total; i++)
            if (kind == 0 && at[17 + i] > 11) return ODD("a Huffman table has a symbol that 8 bits do not need");
        scan->has_huffman[kind][number] = true;
        at += 17 + total;
        bytes -= 17 + total;
    }
    return 0;
}

/* ---- the frame ---- */

static bool is_factor(unsigned factor) {
    return factor == 1 || factor == 2 || factor == 4;
}

/* The factors whose crops are tested to be exact: the two colour channels have 1 x 1, or there is one channel. */
static bool is_known_sampling(const struct scan *scan) {
    const struct component *first = scan->components;
    if (!is_factor(first->across) || !is_factor(first->down) || first->across * first->down > 8) return false;
    for (unsigned i = 1; i < scan->component_count; i++)
        if (scan->components[i].across != 1 || scan->components[i].down != 1) return false;
    return true;
}

static int read_frame(struct scan *scan, unsigned marker, const unsigned char *at, size_t bytes) {
    if (scan->component_count) return ODD("it has two frame headers");
    if (marker > SOF2) return ODD("it is lossless, hierarchical or arithmetic-coded (SOF%u)", marker - SOF0);
    if (bytes < 6 || bytes != 6 + 3 * (size_t)at[5]) return ODD("the frame header is damaged");
    if (at[0] != 8) return ODD("it has %u bits per value; 8 can be decoded", at[0]);
    scan->height = read16(at + 1);
    scan->width = read16(at + 3);
    if (!scan->width || !scan->height || scan->width > HR_IMAGE_MOST_SIDE || scan->height > HR_IMAGE_MOST_SIDE)
        return ODD("its size is %u x %u", scan->width, scan->height);
    if (at[5] != 1 && at[5] != COMPONENTS) return ODD("it has %u components; 1 or 3 can be decoded", at[5]);
    scan->component_count = at[5];
    scan->is_progressive = marker == SOF2;
    for (unsigned i = 0; i < scan->component_count; i++) {
        const unsigned char *from = at + 6 + (size_t)3 * i;
        struct component *to = &scan->components[i];
        *to = (struct component){.id = from[0], .across = from[1] >> 4, .down = from[1] & 15, .quantisation = from[2]};
        for (unsigned k = 0; k < COEFFICIENTS; k++) to->low_bit[k] = UNSEEN;
        if (to->across < 1 || to->down < 1 || to->quantisation >= TABLES) return ODD("the frame header is damaged");
        for (unsigned j = 0; j < i; j++)
            if (scan->components[j].id == to->id) return ODD("two components have the same number");
    }
    return is_known_sampling(scan) ? 0 : ODD("its sampling is unusual");
}

/* ---- scans ---- */

/* One scan header: which components it has, with which tables, and which part of their coefficients. */
struct scan_header {
    struct component *components[COMPONENTS];
    unsigned count, dc[COMPONENTS], ac[COMPONENTS];
    unsigned first, last, high, low;
};

static int parse_scan_header(struct scan *scan, const unsigned char *at, size_t bytes, struct scan_header *ret_header) {
    unsigned count = bytes ? at[0] : 0, next = 0;
    if (count < 1 || count > scan->component_count || bytes != 4 + 2 * (size_t)count)
        return ODD("a scan header is damaged");
    ret_header->count = count;
    for (unsigned i = 0; i < count; i++, next++) { /* in the order of the frame header */
        while (next < scan->component_count && scan->components[next].id != at[1 + 2 * i]) next++;
        if (next == scan->component_count) return ODD("a scan has an unknown component");
        ret_header->components[i] = &scan->components[next];
        ret_header->dc[i] = at[2 + 2 * i] >> 4;
        ret_header->ac[i] = at[2 + 2 * i] & 15;
        if (ret_header->dc[i] >= TABLES || ret_header->ac[i] >= TABLES) return ODD("a scan header is damaged");
    }
    at += 1 + 2 * (size_t)count;
    ret_header->first = at[0];
    ret_header->last = at[1];
    ret_header->high = at[2] >> 4;
    ret_header->low = at[2] & 15;
    return 0;
}

static bool is_progression(const struct scan_header *header) {
    if (header->last >= COEFFICIENTS || header->first > header->last || header->low > 13) return false;
    if (header->first == 0 ? header->last != 0 : header->count != 1) return false;
    return header->high == 0 || header->high == header->low + 1;
}

/* Notes up to which bit the coefficients of the scan have been sent, and checks that this continues earlier scans. */
static int note_progress(const struct scan_header *header) {
    for (unsigned i = 0; i < header->count; i++) {
        int *low_bit = header->components[i]->low_bit;
        if (header->first && low_bit[0] == UNSEEN) return ODD("the scans are in an unusual order");
        for (unsigned k = header->first; k <= header->last; k++) {
            int expected = header->high ? (int)header->high : UNSEEN;
            if (low_bit[k] != expected) return ODD("the scans are in an unusual order");
            low_bit[k] = (int)header->low;
        }
    }
    return 0;
}

static bool has_tables(const struct scan *scan, const struct scan_header *header) {
    for (unsigned i = 0; i < header->count; i++) {
        bool needs_dc = header->first == 0 && header->high == 0, needs_ac = header->last > 0;
        if (!scan->has_quantisation[header->components[i]->quantisation]) return false;
        if (needs_dc && !scan->has_huffman[0][header->dc[i]]) return false;
        if (needs_ac && !scan->has_huffman[1][header->ac[i]]) return false;
    }
    return true;
}

static uint64_t count_units(const struct scan *scan, const struct scan_header *header) {
    uint32_t most_across = 1, most_down = 1, across = 8, down = 8;
    for (unsigned i = 0; i < scan->component_count; i++) {
        if (scan->components[i].across > most_across) most_across = scan->components[i].across;
        if (scan->components[i].down > most_down) most_down = scan->components[i].down;
    }
    uint64_t width = scan->width, height = scan->height;
    if (header->count == 1) { /* its blocks alone, without those that fill up the last unit */
        width = (width * header->components[0]->across + most_across - 1) / most_across;
        height = (height * header->components[0]->down + most_down - 1) / most_down;
    } else {
        across *= most_across;
        down *= most_down;
    }
    return ((width + across - 1) / across) * ((height + down - 1) / down);
}

/* Skips the compressed data of a scan, in which only restart markers may be, as many as there must be. */
static int skip_compressed(struct scan *scan, uint64_t units) {
    uint64_t left = scan->restart_interval ? (units - 1) / scan->restart_interval : 0;
    unsigned due = RST0;
    for (;;) {
        const unsigned char *found = memchr(scan->at, 0xFF, (size_t)(scan->end - scan->at));
        if (!found || found + 1 >= scan->end) return ODD("it is truncated: there is no end-of-image marker");
        scan->at = found + 2;
        if (found[1] == 0) continue; /* a byte 0xFF of the data */
        if (left && found[1] == due) {
            due = due == RST7 ? RST0 : due + 1;
            left--;
        } else {
            scan->at = found;
            return left ? ODD("a restart marker is missing") : 0;
        }
    }
}

static int read_scan(struct scan *scan, const unsigned char *at, size_t bytes) {
    struct scan_header header;
    if (!scan->component_count) return ODD("a scan comes before the frame header");
    int r = parse_scan_header(scan, at, bytes, &header);
    if (r < 0) return r;
    if (scan->is_progressive) {
        if (!is_progression(&header)) return ODD("a scan header is damaged");
        if ((r = note_progress(&header)) < 0) return r;
    } else {
        if (scan->has_scan || header.count != scan->component_count) return ODD("its components are in several scans");
        if (header.first != 0 || header.last != COEFFICIENTS - 1 || header.high || header.low)
            return ODD("a scan header is damaged");
    }
    if (!has_tables(scan, &header)) return ODD("a table is missing");
    scan->has_scan = true;
    return skip_compressed(scan, count_units(scan, &header));
}

/* ---- the file ---- */

static int read_segment(struct scan *scan, unsigned marker, const unsigned char *at, size_t bytes) {
    switch (marker) {
    case DQT:
        return scan->has_scan ? ODD("a quantisation table comes late") : read_quantisation(scan, at, bytes);
    case DHT:
        return read_huffman(scan, at, bytes);
    case DRI:
        if (bytes != 2) return ODD("the restart interval is damaged");
        scan->restart_interval = read16(at);
        return 0;
    case SOS:
        return read_scan(scan, at, bytes);
    case COM:
        return 0;
    default:
        if (marker >= SOF0 && marker <= SOF15 && marker != JPG && marker != DAC)
            return read_frame(scan, marker, at, bytes);
        if (marker >= APP0 && marker <= APP15) return 0;
        return ODD("it has an unexpected marker 0x%02X", marker);
    }
}

/* A progressive file without its last scans is smoothed by the decoder, in other ways by other versions. */
static int check_complete(const struct scan *scan) {
    if (!scan->has_scan) return ODD("it has no scan");
    for (unsigned i = 0; i < scan->component_count && scan->is_progressive; i++)
        for (unsigned k = 0; k < COEFFICIENTS; k++)
            if (scan->components[i].low_bit[k] != 0) return ODD("a scan of a progressive file is missing");
    return 0;
}

int hr__jpeg_scan(const unsigned char *data, size_t bytes, struct hr_image_info *ret_info) {
    struct scan scan = {.at = data + 2, .end = data + bytes};
    if (bytes < 4 || data[0] != 0xFF || data[1] != SOI) return ODD("it is not a JPEG file");
    for (;;) {
        if (scan.end - scan.at < 2) return ODD("it is truncated: there is no end-of-image marker");
        if (scan.at[0] != 0xFF) return ODD("there are bytes between two markers");
        unsigned marker = scan.at[1];
        if (marker == EOI) break;
        if (scan.end - scan.at < 4) return ODD("it is truncated");
        size_t length = read16(scan.at + 2);
        const unsigned char *segment = scan.at + 4;
        if (length < 2 || (size_t)(scan.end - scan.at) < 2 + length) return ODD("it is truncated");
        scan.at += 2 + length;
        int r = read_segment(&scan, marker, segment, length - 2);
        if (r < 0) return r;
    }
    int r = check_complete(&scan);
    if (r < 0) return r;
    *ret_info = (struct hr_image_info){.width = scan.width,
                                       .height = scan.height,
                                       .channels = scan.component_count,
                                       .is_progressive = scan.is_progressive,
                                       .data_bytes = (uint64_t)(scan.at + 2 - data)};
    return 0;
}
