//! The canvas: colours, text, rectangles, lines and PNG encoding. Does not depend on tensors.

use std::collections::HashMap;

use ab_glyph::{Font, FontRef, GlyphId, PxScale, ScaleFont, point};

/// Size of every picture in bytes.
pub const PNG_LEN: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum CanvasError {
    #[error("the picture cannot be drawn: {0}")]
    Font(#[from] ab_glyph::InvalidFont),
    #[error("the picture cannot be encoded: {0}")]
    Encode(#[from] png::EncodingError),
    #[error("the picture takes {len} bytes; at most {PNG_LEN} are possible")]
    TooLarge { len: usize },
}

pub(super) const WIDTH: i32 = 1320;
pub(super) const HEIGHT: i32 = 720;

pub(super) type PlotColor = [u8; 3];

pub(super) const INK: PlotColor = [32, 36, 44];
const WHITE: PlotColor = [255, 255, 255];
pub(super) const BAR: PlotColor = [70, 118, 172];
pub(super) const BAND: PlotColor = [176, 201, 229];
pub(super) const NAN: PlotColor = [0, 0, 0];
pub(super) const INF: PlotColor = [70, 190, 30];
pub(super) const ALARM: PlotColor = RAMP[4];

/// The colour scale: blue, white, red, in equal steps.
const RAMP: [PlotColor; 5] = [[20, 66, 144], [118, 170, 218], [248, 248, 248], [240, 146, 120], [164, 16, 40]];
/// Number of colours of the scale on each side of white.
const STEPS: i32 = 100;
/// Number of greys from ink to white, used for text.
const GREYS: u8 = 48;

/// The colour of a number from -1 to 1; others are clamped.
pub(super) fn ramp(value: f64) -> PlotColor {
    let at = (value * f64::from(STEPS)).round().clamp(-f64::from(STEPS), f64::from(STEPS));
    let at = (at / f64::from(STEPS) + 1.0) * 2.0;
    let from = (at as usize).min(3);
    mix(RAMP[from], RAMP[from + 1], at - from as f64)
}

/// The grey between ink (0) and white (1).
pub(super) fn grey(share: f64) -> PlotColor {
    mix(INK, WHITE, share)
}

fn mix(from: PlotColor, to: PlotColor, share: f64) -> PlotColor {
    [0, 1, 2].map(|at| (f64::from(from[at]) + (f64::from(to[at]) - f64::from(from[at])) * share).round() as u8)
}

fn palette() -> Vec<PlotColor> {
    let greys = (0..GREYS).map(|at| grey(f64::from(at) / f64::from(GREYS - 1)));
    let ramp = (-STEPS..=STEPS).map(|at| ramp(f64::from(at) / f64::from(STEPS)));
    greys.chain(ramp).chain([BAR, BAND, NAN, INF]).collect()
}

/// The index of the nearest colour of a palette.
fn nearest_color(palette: &[PlotColor], color: PlotColor) -> u8 {
    (0..).zip(palette).min_by_key(|(_, other)| color_distance(**other, color)).map_or(0, |(at, _)| at)
}

/// The square of the distance of two colours.
fn color_distance(a: PlotColor, b: PlotColor) -> i32 {
    (0..3).map(|at| i32::from(a[at].abs_diff(b[at])).pow(2)).sum()
}

/// A rectangle in pixels.
#[derive(Clone, Copy)]
pub(super) struct PlotFrame {
    pub left: i32,
    pub top: i32,
    pub width: i32,
    pub height: i32,
}

impl PlotFrame {
    pub fn right(self) -> i32 {
        self.left + self.width
    }

    pub fn bottom(self) -> i32 {
        self.top + self.height
    }

    /// The middle, a quarter as wide and as high, but at least a pixel.
    pub fn center(self) -> Self {
        let (width, height) = ((self.width / 4).max(1), (self.height / 4).max(1));
        let (left, top) = (self.left + (self.width - width) / 2, self.top + (self.height - height) / 2);
        Self { left, top, width, height }
    }
}

/// An image with a palette.
pub(super) struct Canvas {
    font: FontRef<'static>,
    /// Indices into the palette, row by row.
    pub pixels: Vec<u8>,
    palette: Vec<PlotColor>,
    /// Cache: the index of the nearest colour of the palette for each colour drawn so far.
    nearest: HashMap<PlotColor, u8>,
}

pub(super) fn blank() -> Vec<u8> {
    vec![GREYS - 1; (WIDTH * HEIGHT) as usize]
}

impl Canvas {
    pub fn new() -> Result<Self, CanvasError> {
        let font = FontRef::try_from_slice(ttf_noto_sans::REGULAR)?;
        Ok(Self { font, pixels: blank(), palette: palette(), nearest: HashMap::new() })
    }

    /// Whether the font can show `char`.
    pub fn has(&self, char: char) -> bool {
        self.font.glyph_id(char).0 != 0
    }

    /// Width of `text` in pixels.
    pub fn text_width(&self, text: &str, size: i32) -> i32 {
        self.layout(text, size).1.ceil() as i32
    }

    /// Each glyph with its start in pixels, and the end of the last one.
    fn layout(&self, text: &str, size: i32) -> (Vec<(GlyphId, f32)>, f32) {
        let font = self.font.as_scaled(PxScale::from(size as f32));
        let (mut glyphs, mut at) = (Vec::<(GlyphId, f32)>::new(), 0.0);
        for char in text.chars() {
            let glyph = font.glyph_id(char);
            at += glyphs.last().map_or(0.0, |(before, _)| font.kern(*before, glyph));
            glyphs.push((glyph, at));
            at += font.h_advance(glyph);
        }
        (glyphs, at)
    }

    /// Writes text at a position. `anchor` is which point of the text is there, as shares of its width and its height:
    /// (0, 0) is its top left corner, (1, 1) its bottom right one.
    pub fn text(&mut self, text: &str, at: (i32, i32), size: i32, color: PlotColor, anchor: (f32, f32)) {
        self.draw_text(text, size, anchor, color, |x, y| (at.0 + x, at.1 + y));
    }

    /// As [`Self::text`], upwards.
    pub fn text_upwards(&mut self, text: &str, at: (i32, i32), size: i32, color: PlotColor, anchor: (f32, f32)) {
        self.draw_text(text, size, anchor, color, |x, y| (at.0 + y, at.1 - x));
    }

    /// `place` maps positions relative to the anchor to pixels.
    fn draw_text(
        &mut self,
        text: &str,
        size: i32,
        (across, down): (f32, f32),
        color: PlotColor,
        place: impl Fn(i32, i32) -> (i32, i32),
    ) {
        let (glyphs, width) = self.layout(text, size);
        let font = self.font.clone().into_scaled(PxScale::from(size as f32));
        // A baseline between two pixels would blur every letter.
        let base = (font.ascent() - down * font.height()).round();
        for (glyph, start) in glyphs {
            let glyph = glyph.with_scale_and_position(font.scale(), point(start - across * width, base));
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let corner = outline.px_bounds().min;
            outline.draw(|x, y, coverage| {
                let (x, y) = place(corner.x as i32 + x as i32, corner.y as i32 + y as i32);
                self.blend(x, y, color, coverage.min(1.0).into());
            });
        }
    }

    /// Draws a line of one pixel. Each of its points is shared between the two nearest pixels.
    pub fn line(&mut self, from: (i32, i32), to: (i32, i32), color: PlotColor) {
        let (across, down) = (to.0 - from.0, to.1 - from.1);
        let steps = across.abs().max(down.abs());
        for step in 0..=steps {
            let share = f64::from(step) / f64::from(steps.max(1));
            let (x, y) = (f64::from(from.0) + share * f64::from(across), f64::from(from.1) + share * f64::from(down));
            // One of the two is a whole number.
            let rest = (x - x.floor()).max(y - y.floor());
            self.blend(x.floor() as i32, y.floor() as i32, color, 1.0 - rest);
            self.blend(x.ceil() as i32, y.ceil() as i32, color, rest);
        }
    }

    pub fn fill(&mut self, frame: PlotFrame, color: PlotColor) {
        let (left, right) = (frame.left.clamp(0, WIDTH), frame.right().clamp(0, WIDTH));
        let color = self.nearest_index(color);
        for y in frame.top.max(0)..frame.bottom().min(HEIGHT) {
            if let Some(line) = self.pixels.get_mut((y * WIDTH + left) as usize..(y * WIDTH + right) as usize) {
                line.fill(color);
            }
        }
    }

    /// Draws a line of one pixel around a frame.
    pub fn border(&mut self, PlotFrame { left, top, width, height }: PlotFrame, color: PlotColor) {
        for top in [top - 1, top + height] {
            self.fill(PlotFrame { left: left - 1, top, width: width + 2, height: 1 }, color);
        }
        for left in [left - 1, left + width] {
            self.fill(PlotFrame { left, top, width: 1, height }, color);
        }
    }

    /// Mixes `share` of a colour into a pixel. Pixels outside of the picture are ignored.
    fn blend(&mut self, x: i32, y: i32, color: PlotColor, share: f64) {
        if (0..WIDTH).contains(&x) && (0..HEIGHT).contains(&y) {
            let at = (y * WIDTH + x) as usize;
            self.pixels[at] = self.nearest_index(mix(self.palette[usize::from(self.pixels[at])], color, share));
        }
    }

    fn nearest_index(&mut self, color: PlotColor) -> u8 {
        *self.nearest.entry(color).or_insert_with(|| nearest_color(&self.palette, color))
    }
}

/// The picture as a PNG file of [`PNG_LEN`] bytes.
pub(super) fn encode_png(pixels: &[u8]) -> Result<Vec<u8>, CanvasError> {
    let mut file = Vec::with_capacity(PNG_LEN);
    let mut encoder = png::Encoder::new(&mut file, WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette().concat());
    encoder.set_compression(png::Compression::Balanced);
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;

    // A padding chunk (length, type, content and checksum) is inserted before the last chunk, IEND. The lower-case
    // letters of its type mark it as ancillary and private.
    let end = file.split_off(file.len().saturating_sub(12));
    let len = file.len() + end.len();
    let padding = PNG_LEN.checked_sub(len + 12).ok_or(CanvasError::TooLarge { len })?;
    let mut chunk = b"wfPd".to_vec();
    chunk.resize(4 + padding, 0);
    file.extend((padding as u32).to_be_bytes());
    file.extend(&chunk);
    file.extend(crc32fast::hash(&chunk).to_be_bytes());
    file.extend(end);
    Ok(file)
}
